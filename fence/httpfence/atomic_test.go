package httpfence_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// A holder that is paused while it sends its body must not keep its successor out.
func TestNewAtomicMiddleware_doesNotWaitForABody(t *testing.T) {
	var g fence.Guard
	require.NoError(t, g.Claim("orders", 41))
	arrived := make(chan struct{})
	fenced := atomicly(t, &g, httpfence.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(httpfence.Header) == "41" {
			close(arrived)
		}
		fenced.ServeHTTP(w, r)
	}))

	paused, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, paused.Close()) }()
	_, err = fmt.Fprintf(paused, "POST / HTTP/1.1\r\nHost: x\r\nFencing-Token: 41\r\nContent-Length: 8\r\n\r\nan ")
	require.NoError(t, err)
	<-arrived

	resp, _ := send(t, http.MethodPost, server.URL, "", "54")
	require.Equal(t, http.StatusOK, resp.StatusCode)

	_, err = fmt.Fprint(paused, "order")
	require.NoError(t, err)
	late, err := http.ReadResponse(bufio.NewReader(paused), nil)
	require.NoError(t, err)
	require.ErrorIs(t, httpfence.ReadError(late), fence.ErrStale)
	require.NoError(t, late.Body.Close())
}
