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

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

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
