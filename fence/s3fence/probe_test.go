package s3fence_test

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/s3fence"
)

// slow lets time pass before a write and after each request, so that requests overlap.
func slow(next tripper) tripper {
	return func(r *http.Request) (*http.Response, error) {
		pause := time.Millisecond
		if r.Method == http.MethodPut {
			time.Sleep(pause)
			pause *= 5
		}
		resp, err := next(r)
		time.Sleep(pause)
		return resp, err
	}
}

// strip acts like a server that does not know some headers.
func strip(headers ...string) func(tripper) tripper {
	return func(next tripper) tripper {
		return slow(func(r *http.Request) (*http.Response, error) {
			for _, h := range headers {
				r.Header.Del(h)
			}
			return next(r)
		})
	}
}

// racy checks the condition first and then writes, in two steps, as a gateway to a file system is likely to.
func racy(next tripper) tripper {
	write := strip("If-Match", "If-None-Match")(next)
	return func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPut {
			get := r.Clone(r.Context())
			get.Method = http.MethodGet
			old, err := next(get)
			if err != nil {
				return nil, err
			}
			if match := r.Header.Get("If-Match"); match != old.Header.Get("Etag") {
				return reply(r, http.StatusPreconditionFailed, "", []byte(`<Error><Code>PreconditionFailed</Code></Error>`)), nil
			}
		}
		return write(r)
	}
}

// version is a content and its ETag.
type version struct{ body, etag string }

// torn answers the reads that when selects with a mixture of the last two versions of the object, made by tear. It knows
// how many writes of the object are under way and how many there have been.
func torn(when func(writing, puts int) bool, tear func(before, last version) version) func(tripper) tripper {
	return func(next tripper) tripper {
		var mu sync.Mutex // guards the maps
		versions, writing, puts := map[string][2]version{}, map[string]int{}, map[string]int{}
		return func(r *http.Request) (*http.Response, error) {
			path := r.URL.Path
			mu.Lock()
			defer mu.Unlock()
			sleep := func(d time.Duration) {
				mu.Unlock()
				time.Sleep(d)
				mu.Lock()
			}
			if r.Method != http.MethodPut {
				defer sleep(time.Millisecond)
				if v := versions[path]; r.Method == http.MethodGet && v[0].etag != "" && when(writing[path], puts[path]) {
					mixed := tear(v[0], v[1])
					return reply(r, http.StatusOK, mixed.etag, []byte(mixed.body)), nil
				}
				return next(r)
			}
			writing[path]++
			puts[path]++
			sleep(time.Millisecond)
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			resp, err := next(r)
			if err == nil && resp.StatusCode == http.StatusOK {
				versions[path] = [2]version{versions[path][1], {string(body), resp.Header.Get("Etag")}}
			}
			sleep(5 * time.Millisecond)
			writing[path]--
			return resp, err
		}
	}
}

// deferring answers some writes with a status: the first of each object, or if races is set all that compete to create
// one. Of those, done are done before.
func deferring(status int, races bool, done int) func(tripper) tripper {
	return func(next tripper) tripper {
		var mu sync.Mutex // guards the map
		puts := map[string]int{}
		return slow(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if r.Method == http.MethodPut {
				puts[r.URL.Path]++
				n := puts[r.URL.Path]
				if !races && n == 1 || races && len(puts) > 1 && n <= 16 {
					if n <= done {
						if _, err := next(r); err != nil {
							return nil, err
						}
					}
					return reply(r, status, "", []byte("<Error><Code>Deferred</Code></Error>")), nil
				}
			}
			return next(r)
		})
	}
}

// clock is an endpoint whose ETag is the time of the write, in seconds.
func clock(next tripper) tripper {
	const now = `"1795362355"`
	return func(r *http.Request) (*http.Response, error) {
		if r.Header.Get("If-Match") == now {
			r.Header.Del("If-Match")
		}
		resp, err := next(r)
		if err == nil && resp.Header.Get("Etag") != "" {
			resp.Header.Set("Etag", now)
		}
		return resp, err
	}
}

func meanwhile(writing, _ int) bool { return writing > 0 }

func late(before, _ version) version { return before }

func TestBucket_Probe(t *testing.T) {
	mixed := 0
	for name, tt := range map[string]struct {
		through func(tripper) tripper
		want    string // "": the endpoint is safe
	}{
		"safe": {strip(), ""},
		"reads are torn without harm, as by a gateway to a file system": {torn(meanwhile, func(before, last version) version {
			mixed++
			return version{last.body, before.etag}
		}), ""},
		"writes are deferred":            {deferring(http.StatusTooManyRequests, false, 0), ""},
		"all conflict, and none is done": {deferring(http.StatusConflict, true, 0), ""},
		"all conflict, and one is done":  {deferring(http.StatusConflict, true, 1), "all concurrent writes were refused, but one"},
		"the ETag is a time":             {clock, "two contents had the same ETag"},
		"If-Match ignored":               {strip("If-Match"), "ignored If-Match with an old ETag"},
		"If-None-Match ignored":          {strip("If-None-Match"), "ignored If-None-Match: * on an object that exists"},
		"both ignored":                   {strip("If-Match", "If-None-Match"), "ignored If-Match with an ETag of no object"},
		"compares, then writes":          {racy, "of concurrent writes with the same If-None-Match: * more than one was done"},
		"reads are torn": {torn(meanwhile, func(before, last version) version {
			return version{before.body, last.etag}
		}), "a read returned a content with the ETag of a later write"},
		"reads are late": {torn(func(int, int) bool { return true }, late), "a read after a write returned another version"},
		"reads are late in races": {
			torn(func(_, puts int) bool { return puts > 16 }, late), "If-Match a read did not return the one that was done",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store memory
				b := newBucket(t, tt.through(store.RoundTrip), s3fence.Options{})
				err := b.Probe(t.Context())
				require.Empty(t, store.objects, "the probe left something behind")
				if tt.want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, s3fence.ErrUnsafeEndpoint)
				require.ErrorContains(t, err, `for bucket "data": `)
				require.ErrorContains(t, err, tt.want)
			})
		})
	}
	require.Positive(t, mixed)
}

// If an endpoint refuses one write, or all reads, or defers all writes, Probe returns that, and reports the endpoint
// neither as safe nor as unsafe. It deletes its objects even if its context has ended.
func TestBucket_Probe_failure(t *testing.T) {
	const end, deferred = -2, -1 // of the context at the third write; of all writes
	// 0 stands for the reads. The writes from the sixth on are in the races.
	for _, nth := range []int64{end, deferred, 0, 1, 2, 3, 4, 5, 6, 22} {
		synctest.Test(t, func(t *testing.T) {
			var store memory
			var writes atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			want := map[int64]string{end: "context canceled", deferred: "TooManyRequests"}[nth]
			b := newBucket(t, func(r *http.Request) (*http.Response, error) {
				put, n := r.Method == http.MethodPut, writes.Load()
				if put {
					n = writes.Add(1)
				}
				switch {
				case r.Context().Err() != nil:
					return nil, r.Context().Err()
				case nth == end && n == 3:
					cancel()
				case put && nth == deferred:
					return reply(r, http.StatusTooManyRequests, "", []byte(`<Error><Code>TooManyRequests</Code></Error>`)), nil
				case put && n == nth || r.Method == http.MethodGet && nth == 0:
					return reply(r, http.StatusNotFound, "", []byte(`<Error><Code>NoSuchBucket</Code></Error>`)), nil
				}
				return store.RoundTrip(r)
			}, s3fence.Options{})
			err := b.Probe(ctx)
			require.ErrorContains(t, err, cmp.Or(want, "NoSuchBucket"), "write %d", nth)
			require.NotErrorIs(t, err, s3fence.ErrUnsafeEndpoint)
			require.Empty(t, store.objects, "the probe left something behind")
		})
	}
}
