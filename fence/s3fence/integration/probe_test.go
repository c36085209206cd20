package integration_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

// isObject reports whether the request's path names an object.
func isObject(r *http.Request) bool { return strings.Count(r.URL.Path, "/") >= 2 }

// racy checks the condition first and then writes, in two steps, as a gateway to a file system is likely to.
func racy(next http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
		if r.Method != http.MethodPut || match == "" && none == "" {
			return next.RoundTrip(r)
		}
		head := r.Clone(r.Context())
		head.Method, head.Body, head.ContentLength = http.MethodHead, nil, 0
		head.Header = http.Header{"X-Amz-Content-Sha256": {emptySum}}
		if err := sign(head); err != nil {
			return nil, err
		}
		resp, err := next.RoundTrip(head)
		if err != nil {
			return nil, err
		}
		_ = resp.Body.Close()
		there := resp.StatusCode == http.StatusOK
		if none != "" && there || match != "" && (!there || resp.Header.Get("Etag") != match) {
			return made(r, http.StatusPreconditionFailed, "PreconditionFailed"), nil
		}
		for _, h := range []string{"If-Match", "If-None-Match"} {
			if err := unconditional(r, h); err != nil {
				return nil, err
			}
		}
		return next.RoundTrip(r)
	})
}

const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// version is a content and its ETag.
type version struct {
	body []byte
	etag string
}

// meanwhile selects reads while writes are under way.
func meanwhile(_ string, writing bool) bool { return writing }

// always selects all reads.
func always(string, bool) bool { return true }

// inRaces selects reads of the objects that a probe's writers race for.
func inRaces(path string, _ bool) bool {
	return strings.Count(path[strings.LastIndex(path, "/"):], "-") == 3
}

// torn answers the reads that when selects with a mixture of the last two versions of the object, made by tear.
func torn(
	when func(path string, writing bool) bool, tear func(before, last version) version,
) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		var (
			writing  atomic.Int64
			mu       sync.Mutex
			versions = map[string][2]version{} // by path
		)
		return tripper(func(r *http.Request) (*http.Response, error) {
			if !isObject(r) || r.Method == http.MethodGet && !when(r.URL.Path, writing.Load() > 0) {
				return next.RoundTrip(r)
			}
			if r.Method == http.MethodGet {
				resp, err := next.RoundTrip(r)
				mu.Lock()
				v := versions[r.URL.Path]
				mu.Unlock()
				if err != nil || v[0].body == nil {
					return resp, err
				}
				_ = resp.Body.Close()
				mixed := tear(v[0], v[1])
				return &http.Response{
					StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: r,
					Header: http.Header{"Etag": {mixed.etag}},
					Body:   io.NopCloser(bytes.NewReader(mixed.body)), ContentLength: int64(len(mixed.body)),
				}, nil
			}
			var body []byte
			if r.Body != nil {
				var err error
				if body, err = io.ReadAll(r.Body); err != nil {
					return nil, err
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			writing.Add(1)
			defer writing.Add(-1)
			resp, err := next.RoundTrip(r)
			if err == nil && r.Method == http.MethodPut && resp.StatusCode == http.StatusOK {
				mu.Lock()
				versions[r.URL.Path] = [2]version{versions[r.URL.Path][1], {body, resp.Header.Get("Etag")}}
				mu.Unlock()
			}
			return resp, err
		})
	}
}

func harmful(before, last version) version { return version{before.body, last.etag} }

func late(before, _ version) version { return before }

// Probe accepts an endpoint that returns a content with the ETag of an earlier write, as a gateway to a file system
// can: that does no harm.
func TestBucket_Probe_harmlessReads(t *testing.T) {
	var mixed atomic.Int64
	p := newProxy(t, "", torn(meanwhile, func(before, last version) version {
		mixed.Add(1)
		return version{last.body, before.etag}
	}))
	require.NoError(t, p.Probe(t.Context()))
	require.Positive(t, mixed.Load())
}

func TestBucket_Probe(t *testing.T) {
	p := newProxy(t, "", nil)
	var requests atomic.Int64
	p.onRequest(func(*http.Request) error { requests.Add(1); return nil })
	require.NoError(t, p.Probe(t.Context()))
	t.Logf("%d requests", requests.Load())

	bucket := lastBucket()
	left, err := p.client.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket})
	require.NoError(t, err)
	require.Empty(t, left.Contents, "the probe left something behind")
}

func TestBucket_Probe_refusesUnsafeEndpoints(t *testing.T) {
	for name, tt := range map[string]struct {
		through func(http.RoundTripper) http.RoundTripper
		want    string
	}{
		"If-Match ignored":        {strip("If-Match"), "ignored If-Match with an old ETag"},
		"If-None-Match ignored":   {strip("If-None-Match"), "ignored If-None-Match: * on an object that exists"},
		"both ignored":            {strip("If-Match", "If-None-Match"), "ignored If-Match with an ETag of no object"},
		"compares, then writes":   {racy, "of concurrent writes with the same If-None-Match: * more than one was done"},
		"reads are torn":          {torn(meanwhile, harmful), "a read returned a content with the ETag of a later write"},
		"reads are late":          {torn(always, late), "a read after a write returned another version"},
		"reads are late in races": {torn(inRaces, late), "If-Match a read did not return the one that was done"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, "", tt.through)
			err := p.Probe(t.Context())
			require.ErrorIs(t, err, s3fence.ErrUnsafeEndpoint)
			require.ErrorContains(t, err, tt.want)
			var unsafe *s3fence.UnsafeEndpointError
			require.ErrorAs(t, err, &unsafe)
			require.Equal(t, lastBucket(), unsafe.Bucket)
		})
	}
}

// An endpoint that refuses requests is not reported as unsafe.
func TestBucket_Probe_failure(t *testing.T) {
	p := newProxy(t, "", nil)
	missing, err := s3fence.NewBucket(p.client, "no-such-bucket", s3fence.Options{})
	require.NoError(t, err)
	err = missing.Probe(t.Context())
	require.ErrorContains(t, err, "NoSuchBucket")
	require.NotErrorIs(t, err, s3fence.ErrUnsafeEndpoint)
}

// The control: on an endpoint that ignores If-Match the same interleaving accepts a stale write.
func TestControl_staleWriteAccepted(t *testing.T) {
	newer := newProxy(t, "", nil)
	older := newProxy(t, lastBucket(), strip("If-Match"))
	require.NoError(t, newer.Put(holding(t, 40), "key", []byte("base")))
	held, release := older.hold(t, http.MethodPut, false)
	result := make(chan error, 1)
	go func() { result <- older.Put(holding(t, 41), "key", []byte("41")) }()
	await(t, held, "the older holder did not write")
	require.NoError(t, newer.Claim(holding(t, 54), "key"))
	require.NoError(t, newer.Put(holding(t, 54), "key", []byte("54")))
	release()
	require.NoError(t, await(t, result, "the older holder did not return"))
	payload, token := get(t, newer, "key")
	require.Equal(t, "41", payload)
	require.Equal(t, fence.Token(41), token, "the mark went back")
}
