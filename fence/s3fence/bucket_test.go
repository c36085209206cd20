package s3fence_test

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // S3's ETag
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
	"github.com/leasefence/leasefence/fence/s3fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// memory is the part of S3 that the examples and the tests beside the code need. The module integration tests against a
// server.
type memory struct {
	mu      sync.Mutex
	objects map[string][]byte // by path
	sent    map[string]int    // requests, by method
	clock   string            // the ETag of all objects; none if empty
}

func (m *memory) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sent == nil {
		m.sent = make(map[string]int)
	}
	m.sent[r.Method]++
	old, there := m.objects[r.URL.Path]
	var last int
	_, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=0-%d", &last)
	ranged := err == nil
	switch match := r.Header.Get("If-Match"); {
	case r.Method == http.MethodDelete:
		delete(m.objects, r.URL.Path)
		return reply(r, http.StatusNoContent, "", nil), nil
	case r.Method == http.MethodGet && !there:
		return reply(r, http.StatusNotFound, "", []byte(`<Error><Code>NoSuchKey</Code></Error>`)), nil
	case r.Method == http.MethodGet && ranged:
		return reply(r, http.StatusPartialContent, m.etag(old), old[:min(last+1, len(old))]), nil
	case r.Method == http.MethodGet:
		return reply(r, http.StatusOK, m.etag(old), old), nil
	case r.Header.Get("If-None-Match") != "" && there, match != "" && (!there || match != m.etag(old)):
		return reply(r, http.StatusPreconditionFailed, "", []byte(`<Error><Code>PreconditionFailed</Code></Error>`)), nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if m.objects == nil {
		m.objects = make(map[string][]byte)
	}
	m.objects[r.URL.Path] = body
	return reply(r, http.StatusOK, m.etag(body), nil), nil
}

func (m *memory) etag(body []byte) string {
	if m.clock != "" {
		return m.clock
	}
	sum := md5.Sum(body) //nolint:gosec // as above
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func reply(r *http.Request, status int, etag string, body []byte) *http.Response {
	resp := &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	if etag != "" {
		resp.Header.Set("ETag", etag)
	}
	return resp
}

// silent returns an S3 client that fails the test if anything is sent.
func silent(t *testing.T) *s3.Client {
	t.Helper()
	return newClient(func(*http.Request) (*http.Response, error) {
		t.Error("something was sent")
		return nil, errors.New("something was sent")
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func newClient(trip tripper) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String("http://s3.test"), Region: "us-east-1", UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "access", SecretAccessKey: "secret"}, nil
		}),
		HTTPClient: &http.Client{Transport: trip},
	})
}

func TestNewBucket_refuses(t *testing.T) {
	client := silent(t)
	for _, tt := range []struct {
		client *s3.Client
		bucket string
		opts   s3fence.Options
		want   string
	}{
		{nil, "data", s3fence.Options{}, "client is nil, want an S3 client"},
		{client, "", s3fence.Options{}, `bucket "" has 0 bytes, want 1 to 255`},
		{client, strings.Repeat("x", 256), s3fence.Options{}, "has 256 bytes, want 1 to 255"},
		{client, "data", s3fence.Options{Attempts: -1}, "Options.Attempts is -1, want 1 to 1000"},
		{client, "data", s3fence.Options{Attempts: 1001}, "Options.Attempts is 1001, want 1 to 1000"},
		{client, "data", s3fence.Options{Backoff: -1}, "Options.Backoff is -1ns, want 1ms to 10s"},
		{client, "data", s3fence.Options{Backoff: time.Minute}, "Options.Backoff is 1m0s, want 1ms to 10s"},
		{client, "data", s3fence.Options{MaxSize: -1}, "Options.MaxSize is -1, want 1 to 5368701952"},
		{client, "data", s3fence.Options{MaxSize: math.MaxInt64}, "want 1 to 5368701952"},
		{client, "data", s3fence.Options{MaxEra: 32768}, "s3fence: Options.MaxEra is 32768, want 1 to 32767"},
	} {
		b, err := s3fence.NewBucket(tt.client, tt.bucket, tt.opts)
		require.ErrorContains(t, err, tt.want)
		require.Nil(t, b)
	}
}

func TestBucket_refusesBadInput(t *testing.T) {
	b, err := s3fence.NewBucket(silent(t), "data", s3fence.Options{})
	require.NoError(t, err)
	keys := map[string]string{
		"":                        `key "" has 0 bytes, want 1 to 1024`,
		strings.Repeat("k", 1025): "has 1025 bytes, want 1 to 1024",
		"\xff":                    "is not UTF-8",
	}
	fencetest.Refuse(t, verbs(b), keys)
	for key, want := range keys {
		_, err := b.Get(t.Context(), key)
		require.ErrorContains(t, err, want)
	}
	small, err := s3fence.NewBucket(silent(t), "data", s3fence.Options{MaxSize: 10})
	require.NoError(t, err)
	ctx := fence.NewContext(t.Context(), 54)
	require.ErrorContains(t, small.Put(ctx, "key", make([]byte, 11)), "payload has 11 bytes, want at most Options.MaxSize, 10")
	require.ErrorContains(t, b.Update(ctx, "key", nil), "fn is nil, want a function")
}

func TestBucket_zeroIsRefused(t *testing.T) {
	const want = "s3fence: Bucket is nil or zero, want one created by NewBucket"
	for _, b := range []*s3fence.Bucket{nil, {}} {
		for name, v := range verbs(b) {
			require.EqualError(t, v.Call(v.Context(t.Context(), 54, "accounts"), "key"), want, name)
		}
		_, err := b.Get(t.Context(), "key")
		require.EqualError(t, err, want)
		require.EqualError(t, b.Probe(t.Context()), want)
	}
}

// verbs returns the verbs of a bucket.
func verbs(b *s3fence.Bucket) map[string]fencetest.Verb {
	all := fencetest.VerbsOf(b.Claim, b.Check, b.Move, b.ClaimRead, b.CheckRead)
	all["Put"] = fencetest.Verb{Writes: true, Call: func(ctx context.Context, key string) error { return b.Put(ctx, key, []byte("new")) }}
	all["Update"] = fencetest.Verb{Writes: true, Call: func(ctx context.Context, key string) error {
		return b.Update(ctx, key, func([]byte) ([]byte, error) { return []byte("new"), nil })
	}}
	return all
}

// marks reads the line of an object.
func (m *memory) marks(t *testing.T, key string) (found fencetest.Marks) {
	t.Helper()
	body := m.objects["/data/"+key]
	if len(body) == 0 {
		return found
	}
	line, _, _ := strings.Cut(string(body), "\n")
	f := strings.Split(line, " ")
	require.Len(t, f, 7)
	_, err := fmt.Sscan(f[4]+" "+f[5], (*int64)(&found.Write), (*int64)(&found.Read))
	require.NoError(t, err)
	if f[6] != "" {
		found.Lock, err = wire.DecodeLock(f[6:])
		require.NoError(t, err)
	}
	return found
}

// payload returns the payload of an object, "" if there is none.
func payload(t *testing.T, b *s3fence.Bucket, key string) string {
	t.Helper()
	o, err := b.Get(t.Context(), key)
	if !errors.Is(err, s3fence.ErrNoObject) {
		require.NoError(t, err)
	}
	return string(o.Payload)
}

// Nothing is sent after the read that decides a refusal. A mark that need not change is not written again.
func TestBucket_rules(t *testing.T) {
	told := make(fencetest.Told, 9)
	var store memory
	strict := newBucket(t, store.RoundTrip, s3fence.Options{Hooks: told.Hooks()})
	lax := newBucket(t, store.RoundTrip, s3fence.Options{AllowUnnamed: true, Hooks: told.Hooks()})
	rules := fencetest.Rules{Verbs: verbs(strict), Lax: verbs(lax), Told: told, Marks: store.marks}
	rules.Watch = func(t *testing.T, key string) func(fencetest.Step) {
		t.Helper()
		before := store.objects["/data/"+key]
		clear(store.sent)
		return func(s fencetest.Step) {
			changes := s.Err == nil && (s.Verb.Writes || s.Before != s.After)
			require.Equal(t, changes, !bytes.Equal(before, store.objects["/data/"+key]), "%+v", s)
			want := []int{1, 0}
			if changes {
				want[1]++
				if s.Name == "CheckRead" {
					want[0]++ // it claims
				}
			}
			require.Equal(t, want, []int{store.sent[http.MethodGet], store.sent[http.MethodPut]}, "GET and PUT: %+v", s)
		}
	}
	rules.Decide(t)
	rules.Watch = nil
	rules.Names(t, 1024)
}

// Another holder acts before and after each request of each verb.
func TestBucket_overlap(t *testing.T) {
	var store memory
	var moment func()
	b := newBucket(t, func(r *http.Request) (*http.Response, error) {
		moment()
		defer moment()
		return store.RoundTrip(r)
	}, s3fence.Options{})
	rules, plain := fencetest.Rules{Verbs: verbs(b), Marks: store.marks}, newBucket(t, store.RoundTrip, s3fence.Options{})
	rules.Overlap(t, verbs(plain), func(m func()) { moment = m }, func(key string) string { return payload(t, plain, key) })
}

// A write or its answer is lost, or the client gets the answer to a proxy's copy of the request, and others write before
// the object is read back. After one other write, its previous id shows whether this write was done. After two the outcome
// is unknown, and the write is not sent again. A copy that arrives later is refused: its condition is false.
func TestBucket_lostMessages(t *testing.T) {
	type call struct {
		verb, lock string
		token      fence.Token
	}
	const write, delayed, answer, copied = "write", "write, until the next", "answer", "answer, and there is one to a copy"
	for _, verb := range []string{"Put", "Update", "Claim", "Move", "ClaimRead"} {
		for name, since := range map[string][]call{
			"nobody":                       nil,
			"a move":                       {{"Move", "x", 60}},
			"two moves":                    {{"Move", "x", 60}, {"Move", "y", 60}},
			"a newer write":                {{"Put", "accounts", 60}},
			"a write of the same token":    {{"Put", "accounts", 54}},
			"two writes of the same token": {{"Put", "accounts", 54}, {"Update", "accounts", 54}},
			"two newer writes":             {{"Put", "accounts", 60}, {"Put", "accounts", 60}},
			"a reader":                     {{"ClaimRead", "accounts", 60}},
			"two readers":                  {{"ClaimRead", "accounts", 60}, {"ClaimRead", "accounts", 61}},
		} {
			for _, lost := range []string{write, delayed, answer, copied} {
				if lost == delayed && since != nil ||
					lost == copied && (name == "two writes of the same token" || verb == "ClaimRead" && name == "two readers") {
					continue // the last: like any other 412, nothing newer refuses the write, so it is done again
				}
				for _, before := range []fencetest.Marks{{}, {Write: 40, Lock: "accounts"}} {
					t.Run(fmt.Sprintf("%s/%s/lost: %s/%+v", verb, name, lost, before), func(t *testing.T) {
						var store memory
						other, content := newBucket(t, store.RoundTrip, s3fence.Options{}), ""
						if before.Write != 0 {
							content = "base"
							require.NoError(t, other.Put(fencetest.Verb{}.Context(t.Context(), before.Write, before.Lock), "rows", []byte(content)))
						}
						puts, after := 0, before
						var arrive func(status int)
						b := newBucket(t, func(r *http.Request) (*http.Response, error) {
							if r.Method == http.MethodPut {
								puts++
							}
							if r.Method != http.MethodPut || puts > 1 {
								if r.Method == http.MethodPut && lost == delayed {
									arrive(http.StatusOK)
								}
								return store.RoundTrip(r)
							}
							body, err := io.ReadAll(r.Body)
							require.NoError(t, err)
							arrive = func(status int) {
								sent := r.Clone(t.Context())
								sent.Body = io.NopCloser(bytes.NewReader(body))
								resp, err := store.RoundTrip(sent)
								require.NoError(t, err)
								require.Equal(t, status, resp.StatusCode)
							}
							if lost == answer || lost == copied {
								arrive(http.StatusOK)
							}
							for _, c := range since {
								v := verbs(other)[c.verb]
								require.NoError(t, v.Call(v.Context(t.Context(), c.token, c.lock), "rows"))
								after, _ = after.After(v, c.token, c.lock, false)
							}
							if lost == copied {
								return reply(r, http.StatusPreconditionFailed, "", []byte(`<Error><Code>PreconditionFailed</Code></Error>`)), nil
							}
							return nil, errors.New("reset")
						}, s3fence.Options{})
						v := verbs(b)[verb]
						err := v.Call(v.Context(t.Context(), 54, "accounts"), "rows")
						defer arrive(http.StatusPreconditionFailed)

						next, refused := after.After(v, 54, "accounts", false)
						done := (lost == answer || lost == copied) && len(since) < 2
						again := (lost == write || lost == delayed) && len(since) < 2 && refused == nil
						if again && (v.Writes || next != after) {
							require.Equal(t, 2, puts)
						} else {
							require.Equal(t, 1, puts)
						}
						if again {
							require.Equal(t, next, store.marks(t, "rows"))
						}
						if done || again {
							require.NoError(t, err)
							if v.Writes || strings.Contains(name, "write") {
								content = "new"
							}
							require.Equal(t, content, payload(t, b, "rows"))
							return
						}
						require.Equal(t, len(since) > 1, errors.Is(err, s3fence.ErrUnknown))
						_, isOther := refused.(*fence.OtherLockError) //nolint:errorlint // the rule's own
						require.Equal(t, isOther, errors.Is(err, fence.ErrOtherLock))
						require.Equal(t, refused != nil && !isOther, errors.Is(err, fence.ErrStale))
					})
				}
			}
		}
	}
}
