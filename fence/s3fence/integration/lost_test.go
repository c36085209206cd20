package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

var errNoObject = s3fence.ErrNoObject

// drop drops the client's first writes on their way, and the answers to the first ones that arrive, after meanwhile has run.
// It returns the number of writes that were sent.
func (p *proxy) drop(requests, answers int64, meanwhile func()) *atomic.Int64 {
	sent, answered := new(atomic.Int64), new(atomic.Int64)
	p.onRequest(func(r *http.Request) error {
		if r.Method == http.MethodPut && sent.Add(1) <= requests {
			return errDropped
		}
		return nil
	})
	p.onAnswer(func(r *http.Request, _ *http.Response) error {
		if r.Method != http.MethodPut || answered.Add(1) > answers {
			return nil
		}
		if meanwhile != nil {
			meanwhile()
		}
		return errDropped
	})
	return sent
}

// A write whose answer was lost is found by its id and is not done again. A request that never arrived is sent again.
func TestBucket_lostOnTheWay(t *testing.T) {
	p, other, _ := newPair(t)
	for verb, write := range writes {
		for name, lost := range map[string]struct{ requests, answers, sent int64 }{
			"one answer": {0, 1, 1}, "every answer": {0, 1 << 40, 1}, "three requests": {3, 0, 4},
		} {
			for _, exists := range []bool{true, false} {
				key := fmt.Sprintf("%s/there is one %t/%s", verb, exists, name)
				t.Run(key, func(t *testing.T) {
					if exists {
						require.NoError(t, other.Put(holding(t, 40), key, []byte("base")))
					}
					sent := p.drop(lost.requests, lost.answers, nil)
					defer p.quiet()
					require.NoError(t, write.do(t, p, 41, key))
					require.Equal(t, lost.sent, sent.Load())
					require.NoError(t, other.Check(holding(t, 41), key))
					requireStale(t, other.Check(holding(t, 40), key))
					if exists {
						payload, _ := get(t, other, key)
						require.Equal(t, write.want, payload)
					}
				})
			}
		}
	}
}

// An endpoint that nobody can read after the write: unknown, not failed.
func TestBucket_lostAnswerAndUnreadable(t *testing.T) {
	p, other, _ := newPair(t)
	require.NoError(t, other.Put(holding(t, 40), "key", []byte("base")))
	var wrote atomic.Bool
	p.onAnswer(func(r *http.Request, _ *http.Response) error {
		if r.Method == http.MethodPut {
			wrote.Store(true)
		}
		if wrote.Load() {
			return errDropped
		}
		return nil
	})
	err := p.Put(holding(t, 41), "key", []byte("41"))
	require.ErrorIs(t, err, s3fence.ErrUnknown)
	payload, _ := get(t, other, "key")
	require.Equal(t, "41", payload)
}

// The context ends while an answer is awaited: unknown. Before anything is sent: not done.
func TestBucket_contextEnds(t *testing.T) {
	p, other, _ := newPair(t)
	require.NoError(t, other.Put(holding(t, 40), "key", []byte("base")))
	held, release := p.hold(t, steps["after it wrote, not answered"])
	ctx, cancel := context.WithCancel(holding(t, 41))
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- p.Put(ctx, "key", []byte("41")) }()
	await(t, held, "nothing was written")
	cancel()
	err := await(t, result, "Put did not return")
	release()
	require.ErrorIs(t, err, s3fence.ErrUnknown)
	require.ErrorIs(t, err, context.Canceled)

	p.quiet()
	err = p.Put(ctx, "key", []byte("again"))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, s3fence.ErrUnknown)
	payload, _ := get(t, other, "key")
	require.Equal(t, "41", payload)
}

// What else an endpoint says, made up by the proxy: no server can be told to say it.
func TestBucket_otherAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		code   string
		done   bool // the write is passed on before the answer is made up
		times  int64
		want   error // nil: success
	}{
		{"conflict, once", 409, "ConditionalRequestConflict", false, 1, nil},
		{"conflict, always", 409, "ConditionalRequestConflict", false, 1 << 40, s3fence.ErrContended},
		{"slow down, done", 503, "SlowDown", true, 1 << 40, nil},
		{"slow down, not done", 503, "SlowDown", false, 1, nil},
		{"slow down, always", 503, "SlowDown", false, 1 << 40, s3fence.ErrUnknown},
		{"too many requests, always", 429, "TooManyRequests", false, 1 << 40, s3fence.ErrContended},
		{"412 to a copy of the request", 412, "PreconditionFailed", true, 1, nil},
		{"forbidden", 403, "AccessDenied", false, 1, errAny},
		{"no conditional writes", 501, "NotImplemented", false, 1, errAny},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var count atomic.Int64
			p := newProxy(t, "", func(next http.RoundTripper) http.RoundTripper {
				return tripper(func(r *http.Request) (*http.Response, error) {
					if r.Method != http.MethodPut || strings.Count(r.URL.Path, "/") < 2 || count.Add(1) > tt.times {
						return next.RoundTrip(r)
					}
					if tt.done {
						resp, err := next.RoundTrip(r)
						if err != nil {
							return nil, err
						}
						_ = resp.Body.Close()
					}
					return made(r, tt.status, tt.code), nil
				})
			})
			hasty, err := s3fence.NewBucket(p.client, lastBucket(), s3fence.Options{Attempts: 4, Backoff: time.Millisecond})
			require.NoError(t, err)
			err = hasty.Put(holding(t, 41), "key", []byte("41"))
			if tt.want == nil {
				require.NoError(t, err)
				payload, _ := get(t, p, "key")
				require.Equal(t, "41", payload)
				return
			}
			require.Error(t, err)
			if tt.want != errAny { //nolint:errorlint // a mark of this table
				require.ErrorIs(t, err, tt.want)
			} else {
				require.EqualValues(t, 1, count.Load(), "it is not sent again")
				require.ErrorContains(t, err, tt.code)
				require.NotErrorIs(t, err, s3fence.ErrUnknown)
				require.NotErrorIs(t, err, s3fence.ErrContended)
			}
			require.NotErrorIs(t, err, fence.ErrStale)
			_, err = p.Get(t.Context(), "key")
			require.ErrorIs(t, err, errNoObject)
		})
	}
}

var errAny = http.ErrNotSupported

// made is an answer that no server gave.
func made(r *http.Request, status int, code string) *http.Response {
	body := `<?xml version="1.0"?><Error><Code>` + code + `</Code><Message>made up</Message></Error>`
	return &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/xml"}}, Body: io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)),
	}
}

// What has no envelope is neither read nor overwritten.
func TestBucket_foreignObject(t *testing.T) {
	p, _, bucket := newPair(t)
	for name, body := range map[string]string{"empty": "", "short": "hello", "long": strings.Repeat("x", 1000)} {
		t.Run(name, func(t *testing.T) {
			_, err := p.client.PutObject(t.Context(), &s3.PutObjectInput{
				Bucket: &bucket, Key: &name, Body: bytes.NewReader([]byte(body)),
			})
			require.NoError(t, err)
			var puts int
			p.onRequest(func(r *http.Request) error {
				if r.Method == http.MethodPut {
					puts++
				}
				return nil
			})
			defer p.quiet()
			for _, write := range writes {
				require.ErrorIs(t, write.do(t, p, 41, name), s3fence.ErrMalformed)
			}
			require.Zero(t, puts)
			require.ErrorIs(t, p.Check(holding(t, 41), name), s3fence.ErrMalformed)
			_, err = p.Get(t.Context(), name)
			require.ErrorIs(t, err, s3fence.ErrMalformed)
			out, err := p.client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &name})
			require.NoError(t, err)
			left, err := io.ReadAll(out.Body)
			require.NoError(t, err)
			require.NoError(t, out.Body.Close())
			require.Equal(t, body, string(left))
		})
	}
}
