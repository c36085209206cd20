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

// version is a content and its ETag.
type version struct{ body, etag string }

// object is what an endpoint knows of an object.
type object struct {
	before, last  version // the last two
	puts, writing int     // all writes, and those under way
}

// endpoint is a store with a flaw. Its requests take time, so they overlap.
type endpoint struct {
	store   memory
	unknown []string                                       // headers that it does not know
	racy    bool                                           // it compares and then writes, as a gateway to a file system is likely to
	read    func(o object) version                         // what it returns of two versions; nil: the last
	defers  func(nth, objects int) (status int, done bool) // its answer to the nth write of an object; 0: as usual

	mu      sync.Mutex // guards objects
	objects map[string]*object
}

func (e *endpoint) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pause := func(d time.Duration) {
		e.mu.Unlock()
		time.Sleep(d)
		e.mu.Lock()
	}
	if e.objects[r.URL.Path] == nil {
		e.objects[r.URL.Path] = new(object)
	}
	o := e.objects[r.URL.Path]
	if r.Method != http.MethodPut {
		defer pause(time.Millisecond)
		if r.Method == http.MethodGet && e.read != nil && o.before.etag != "" {
			v := e.read(*o)
			return reply(r, http.StatusOK, v.etag, []byte(v.body)), nil
		}
		return e.store.RoundTrip(r)
	}
	o.puts++
	o.writing++
	defer func() { o.writing-- }()
	defer pause(5 * time.Millisecond)
	status, done := 0, true
	if e.defers != nil {
		status, done = e.defers(o.puts, len(e.objects))
	}
	if e.racy && r.Header.Get("If-Match") != o.last.etag {
		status, done = http.StatusPreconditionFailed, false
	}
	pause(time.Millisecond)
	for _, h := range e.unknown {
		r.Header.Del(h)
	}
	refusal := reply(r, status, "", []byte("<Error><Code>Deferred</Code></Error>"))
	if !done {
		return refusal, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	resp, err := e.store.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusOK {
		o.before, o.last = o.last, version{string(body), resp.Header.Get("Etag")}
	}
	if status != 0 {
		return refusal, err
	}
	return resp, err
}

// deferring answers some writes with a status: the first of each object, or if races is set all that compete to create
// one. Of those, done are done before.
func deferring(status int, races bool, done int) func(nth, objects int) (int, bool) {
	return func(nth, objects int) (int, bool) {
		if !races && nth == 1 || races && objects > 1 && nth <= 16 {
			return status, nth <= done
		}
		return 0, true
	}
}

func TestBucket_Probe(t *testing.T) {
	const match, noneMatch = "If-Match", "If-None-Match"
	mixed := 0
	for name, tt := range map[string]struct {
		at   *endpoint
		want string // "": the endpoint is safe
	}{
		"safe": {&endpoint{}, ""},
		"reads are torn without harm, as by a gateway to a file system": {&endpoint{read: func(o object) version {
			if o.writing == 0 {
				return o.last
			}
			mixed++
			return version{o.last.body, o.before.etag}
		}}, ""},
		"writes are deferred":            {&endpoint{defers: deferring(http.StatusTooManyRequests, false, 0)}, ""},
		"all conflict, and none is done": {&endpoint{defers: deferring(http.StatusConflict, true, 0)}, ""},
		"all conflict, and one is done":  {&endpoint{defers: deferring(http.StatusConflict, true, 1)}, "all concurrent writes were refused, but one"},
		"the ETag is a time":             {&endpoint{store: memory{clock: `"1795362355"`}}, "two contents had the same ETag"},
		"If-Match ignored":               {&endpoint{unknown: []string{match}}, "ignored If-Match with an old ETag"},
		"If-None-Match ignored":          {&endpoint{unknown: []string{noneMatch}}, "ignored If-None-Match: * on an object that exists"},
		"both ignored":                   {&endpoint{unknown: []string{match, noneMatch}}, "ignored If-Match with an ETag of no object"},
		"compares, then writes": {
			&endpoint{racy: true, unknown: []string{match, noneMatch}}, "of concurrent writes with the same If-None-Match: * more than one was done",
		},
		"reads are torn": {&endpoint{read: func(o object) version {
			if o.writing == 0 {
				return o.last
			}
			return version{o.before.body, o.last.etag}
		}}, "a read returned a content with the ETag of a later write"},
		"reads are late": {&endpoint{read: func(o object) version { return o.before }}, "a read after a write returned another version"},
		"reads are late in races": {&endpoint{read: func(o object) version {
			if o.puts <= 16 {
				return o.last
			}
			return o.before
		}}, "If-Match a read did not return the one that was done"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.at.objects = map[string]*object{}
				b := newBucket(t, tt.at.RoundTrip, s3fence.Options{})
				err := b.Probe(t.Context())
				require.Empty(t, tt.at.store.objects, "the probe left something behind")
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
