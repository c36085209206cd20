package integration_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// The first attempt is stuck on its way and arrives after the second has been done, and again after a successor's
// claim and write: it is held back each time.
func TestBucket_lateCopy(t *testing.T) {
	for verb, write := range writes {
		for name, exists := range map[string]bool{"create": false, "replace": true} {
			t.Run(verb+"/"+name, func(t *testing.T) {
				var stuck func() *http.Request
				p := newProxy(t, "", func(next http.RoundTripper) http.RoundTripper {
					return tripper(func(r *http.Request) (*http.Response, error) {
						if r.Method != http.MethodPut || !isObject(r) || stuck != nil {
							return next.RoundTrip(r)
						}
						body, err := io.ReadAll(r.Body)
						if err != nil {
							return nil, err
						}
						stuck = func() *http.Request {
							late := r.Clone(t.Context())
							late.Body = io.NopCloser(bytes.NewReader(body))
							return late
						}
						return nil, errDropped
					})
				})
				newer := newProxy(t, lastBucket(), nil)
				if exists {
					require.NoError(t, newer.Put(holding(t, 40), "key", []byte("base")))
				}
				require.NoError(t, write.do(t, p, 41, "key"))
				require.NotNil(t, stuck)
				transport := server.transport()
				defer transport.CloseIdleConnections()
				arrive := func() {
					resp, err := transport.RoundTrip(stuck())
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					require.Equal(t, http.StatusPreconditionFailed, resp.StatusCode)
				}
				arrive()
				require.NoError(t, newer.Claim(holding(t, 54), "key"))
				arrive()
				require.NoError(t, newer.Put(holding(t, 54), "key", []byte("54")))
				arrive()
				payload, token := get(t, newer, "key")
				require.Equal(t, "54", payload)
				require.Equal(t, fence.Token(54), token)
			})
		}
	}
}

// The first attempt is stuck on its way and arrives just before the second, which is held back: both are one write.
func TestBucket_lateFirstAttempt(t *testing.T) {
	for verb, write := range writes {
		t.Run(verb, func(t *testing.T) {
			var attempts int
			var stuck *http.Request
			p := newProxy(t, "", func(next http.RoundTripper) http.RoundTripper {
				return tripper(func(r *http.Request) (*http.Response, error) {
					if r.Method != http.MethodPut || !isObject(r) {
						return next.RoundTrip(r)
					}
					switch attempts++; attempts {
					case 1:
						body, err := io.ReadAll(r.Body)
						if err != nil {
							return nil, err
						}
						stuck = r.Clone(t.Context())
						stuck.Body = io.NopCloser(bytes.NewReader(body))
						return nil, errDropped
					case 2:
						resp, err := next.RoundTrip(stuck)
						if err != nil {
							return nil, err
						}
						if err := resp.Body.Close(); err != nil {
							return nil, err
						}
					}
					return next.RoundTrip(r)
				})
			})
			newer := newProxy(t, lastBucket(), nil)
			require.NoError(t, newer.Put(holding(t, 40), "key", []byte("base")))
			require.NoError(t, write.do(t, p, 41, "key"))
			payload, token := get(t, newer, "key")
			require.Equal(t, write.want, payload, "done once")
			require.Equal(t, fence.Token(41), token)
			require.Equal(t, 2, attempts)
		})
	}
}
