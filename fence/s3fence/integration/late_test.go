package integration_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// The first attempt is delayed in the network. If it arrives just before the second attempt, the second is refused, and
// both count as one write. If it arrives after the second, or after a successor's claim and write, its condition is
// false.
func TestBucket_lateCopy(t *testing.T) {
	transport := server.transport()
	defer transport.CloseIdleConnections()
	for verb, write := range writes {
		for _, exists := range []bool{false, true} {
			for _, inTime := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/there is one %t/before the second attempt %t", verb, exists, inTime), func(t *testing.T) {
					attempts := 0
					var arrive func(status int)
					p := newProxy(t, "", func(next http.RoundTripper) http.RoundTripper {
						return tripper(func(r *http.Request) (*http.Response, error) {
							if r.Method != http.MethodPut || !isObject(r) {
								return next.RoundTrip(r)
							}
							switch attempts++; {
							case attempts == 1:
								body, err := io.ReadAll(r.Body)
								if err != nil {
									return nil, err
								}
								arrive = func(status int) {
									late := r.Clone(t.Context())
									late.Body = io.NopCloser(bytes.NewReader(body))
									resp, err := transport.RoundTrip(late)
									if assert.NoError(t, err) {
										assert.NoError(t, resp.Body.Close())
										assert.Equal(t, status, resp.StatusCode)
									}
								}
								return nil, errDropped
							case attempts == 2 && inTime:
								arrive(http.StatusOK)
							}
							return next.RoundTrip(r)
						})
					})
					newer := newProxy(t, lastBucket(), nil)
					if exists {
						require.NoError(t, newer.Put(holding(t, 40), "key", []byte("base")))
					}
					require.NoError(t, write.do(t, p, 41, "key"))
					require.Equal(t, 2, attempts)
					if exists {
						payload, token := get(t, newer, "key")
						require.Equal(t, write.want, payload, "done once")
						if verb != "ClaimRead" { // it leaves the mark of writers
							require.Equal(t, fence.Token(41), token)
						}
					}
					arrive(http.StatusPreconditionFailed)
					require.NoError(t, newer.Claim(holding(t, 54), "key"))
					arrive(http.StatusPreconditionFailed)
					require.NoError(t, newer.Put(holding(t, 54), "key", []byte("54")))
					arrive(http.StatusPreconditionFailed)
					payload, token := get(t, newer, "key")
					require.Equal(t, "54", payload)
					require.Equal(t, fence.Token(54), token)
				})
			}
		}
	}
}
