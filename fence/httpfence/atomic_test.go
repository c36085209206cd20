package httpfence_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

type reader func([]byte) (int, error)

func (f reader) Read(p []byte) (int, error) { return f(p) }

// A holder that is paused while it sends its body must not keep its successor out.
func TestNewAtomicMiddleware_doesNotWaitForABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where a successor that waits is a deadlock
		var g fence.Guard
		paused := reader(func([]byte) (int, error) {
			require.NoError(t, g.Claim("orders", 54))
			return 0, io.EOF
		})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", paused)
		r.Header.Set(httpfence.Header, "41")
		w := httptest.NewRecorder()
		atomicly(t, &g, httpfence.Options{})(nil).ServeHTTP(w, r)
		require.ErrorIs(t, httpfence.ReadError(w.Result()), fence.ErrStale)
	})
}
