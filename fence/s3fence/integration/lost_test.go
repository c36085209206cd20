package integration_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/s3fence"
)

// If the object cannot be read after a lost answer, the outcome is unknown.
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

// If the context ends while Put waits for an answer, the outcome is unknown. If it ends before anything is sent, the
// write was not done.
func TestBucket_contextEnds(t *testing.T) {
	p, other, _ := newPair(t)
	require.NoError(t, other.Put(holding(t, 40), "key", []byte("base")))
	held, release := p.hold(t, http.MethodPut, true)
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

// made returns an answer that comes from no server.
func made(r *http.Request, status int, code string) *http.Response {
	body := `<?xml version="1.0"?><Error><Code>` + code + `</Code><Message>made up</Message></Error>`
	return &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/xml"}}, Body: io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)),
	}
}

// An object without an envelope is neither read nor overwritten.
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
