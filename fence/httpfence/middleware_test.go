package httpfence_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

func TestMiddleware_refusesAndAccepts(t *testing.T) {
	for name, middleware := range both {
		t.Run(name, func(t *testing.T) {
			var g fence.Guard
			require.NoError(t, g.Claim("orders", 54))
			var served []fence.Token
			server := serve(t, middleware(t, &g, httpfence.Options{})(http.HandlerFunc(
				func(_ http.ResponseWriter, r *http.Request) {
					token, _ := fence.FromContext(r.Context())
					served = append(served, token)
				})))

			resp, body := send(t, http.MethodPost, server.URL, "", "41")
			members := requireProblem(t, resp, body, http.StatusPreconditionFailed, httpfence.TypeStale)
			require.Equal(t, "orders", members["resource"])
			require.Equal(t, "41", members["token"], "a string")
			require.Equal(t, "54", members["highest"], "a string")
			require.Equal(t, `fence: stale token 41 for "orders": highest seen is 54`, members["detail"])

			resp, body = send(t, http.MethodPost, server.URL, "")
			requireProblem(t, resp, body, http.StatusPreconditionRequired, httpfence.TypeMissing)

			for _, values := range [][]string{{"054"}, {"0"}, {""}, {"54, 54"}, {"54", "54"}, {"54", "55"}} {
				resp, body = send(t, http.MethodPost, server.URL, "", values...)
				requireProblem(t, resp, body, http.StatusBadRequest, httpfence.TypeInvalid)
			}
			require.Empty(t, served, "no refused request reaches the handler")
			require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks())

			for _, token := range []string{"54", "54", "60"} {
				resp, _ = send(t, http.MethodPost, server.URL, "", token)
				require.Equal(t, http.StatusOK, resp.StatusCode)
			}
			require.Equal(t, []fence.Token{54, 54, 60}, served)
			require.Equal(t, map[string]fence.Token{"orders": 60}, g.Marks())
		})
	}
}

func TestMiddleware_readersRaiseNoMark(t *testing.T) {
	for name, middleware := range both {
		t.Run(name, func(t *testing.T) {
			var g fence.Guard
			require.NoError(t, g.Claim("orders", 54))
			var carried []fence.Token
			server := serve(t, middleware(t, &g, httpfence.Options{})(http.HandlerFunc(
				func(_ http.ResponseWriter, r *http.Request) {
					token, _ := fence.FromContext(r.Context())
					carried = append(carried, token)
				})))
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
				carried = nil
				for _, tokens := range [][]string{nil, {"41"}, {"60"}} {
					resp, _ := send(t, method, server.URL, "", tokens...)
					require.Equal(t, http.StatusOK, resp.StatusCode, "%s with %q", method, tokens)
				}
				require.Equal(t, []fence.Token{0, 41, 60}, carried)
				resp, _ := send(t, method, server.URL, "", "060")
				require.Equal(t, http.StatusBadRequest, resp.StatusCode, "malformed is malformed")
			}
			require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks())

			for _, method := range []string{http.MethodPut, http.MethodPatch, http.MethodDelete, "MKCOL"} {
				resp, _ := send(t, method, server.URL, "")
				require.Equal(t, http.StatusPreconditionRequired, resp.StatusCode, method)
			}
		})
	}
}

func TestMiddleware_whichRequestsWriteIsAnOption(t *testing.T) {
	var g fence.Guard
	server := serve(t, early(t, &g, httpfence.Options{
		Writes: func(r *http.Request) bool { return r.URL.Path != "/search" },
	})(nil))

	resp, _ := send(t, http.MethodPost, server.URL+"/search", "", "60")
	require.Equal(t, http.StatusNotFound, resp.StatusCode, "reached the handler, which is nil")
	require.Empty(t, g.Marks())
	resp, _ = send(t, http.MethodGet, server.URL+"/pop", "")
	require.Equal(t, http.StatusPreconditionRequired, resp.StatusCode)
}

func TestMiddleware_resourceIsThatOfTheRequest(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		var g fence.Guard
		path := func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }
		middleware, err := httpfence.NewMiddleware(path, httpfence.GuardCheck(&g), httpfence.Options{})
		if atomic {
			middleware, err = httpfence.NewAtomicMiddleware(path, &g, httpfence.Options{})
		}
		require.NoError(t, err)
		reached := 0
		server := serve(t, middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ })))

		for path, token := range map[string]string{"/a": "54", "/b": "41"} {
			resp, _ := send(t, http.MethodPost, server.URL+path, "", token)
			require.Equal(t, http.StatusOK, resp.StatusCode)
		}
		require.Equal(t, map[string]fence.Token{"a": 54, "b": 41}, g.Marks())

		resp, body := send(t, http.MethodPost, server.URL, "", "60")
		requireProblem(t, resp, body, http.StatusInternalServerError, "about:blank")
		require.Equal(t, 2, reached)
		require.Len(t, g.Marks(), 2, "the empty name is none")
	}
}

// A check that cannot be made refuses, and tells the client nothing of why.
func TestMiddleware_failedCheckRefuses(t *testing.T) {
	errStore := errors.New("dial 10.0.0.7: refused")
	check := func(context.Context, string, fence.Token) error { return errStore }
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler has run") })

	middleware, err := httpfence.NewMiddleware(orders, check, httpfence.Options{})
	require.NoError(t, err)
	resp, body := send(t, http.MethodPost, serve(t, middleware(never)).URL, "", "54")
	requireProblem(t, resp, body, http.StatusServiceUnavailable, "about:blank")
	require.NotContains(t, body, "10.0.0.7")

	var seen error
	middleware, err = httpfence.NewMiddleware(orders, check, httpfence.Options{
		Refuse: func(w http.ResponseWriter, _ *http.Request, err error) {
			seen = err
			w.WriteHeader(http.StatusTeapot)
		},
	})
	require.NoError(t, err)
	resp, _ = send(t, http.MethodPost, serve(t, middleware(never)).URL, "", "54")
	require.Equal(t, http.StatusTeapot, resp.StatusCode)
	require.ErrorIs(t, seen, errStore)
}

// The check has the request's context: its end, and the token.
func TestMiddleware_checkHasTheRequestsContext(t *testing.T) {
	type key struct{}
	got := make(chan context.Context, 1)
	middleware, err := httpfence.NewMiddleware(orders,
		func(ctx context.Context, _ string, _ fence.Token) error { got <- ctx; return nil }, httpfence.Options{})
	require.NoError(t, err)
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		middleware(nil).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key{}, "outer")))
	})
	send(t, http.MethodPost, serve(t, outer).URL, "", "54")
	ctx := <-got
	require.Equal(t, "outer", ctx.Value(key{}))
	token, ok := fence.FromContext(ctx)
	require.True(t, ok)
	require.Equal(t, fence.Token(54), token)
}

func TestNewMiddleware_namesWhatIsWrong(t *testing.T) {
	check := httpfence.GuardCheck(new(fence.Guard))
	_, err := httpfence.NewMiddleware(nil, check, httpfence.Options{})
	require.EqualError(t, err, "httpfence: resource: nil, want a function")
	_, err = httpfence.NewMiddleware(orders, nil, httpfence.Options{})
	require.EqualError(t, err, "httpfence: check: nil, want a function")
	_, err = httpfence.NewMiddleware(orders, httpfence.GuardCheck(nil), httpfence.Options{})
	require.EqualError(t, err, "httpfence: check: nil, want a function")
	_, err = httpfence.NewAtomicMiddleware(nil, new(fence.Guard), httpfence.Options{})
	require.EqualError(t, err, "httpfence: resource: nil, want a function")
	_, err = httpfence.NewAtomicMiddleware(orders, nil, httpfence.Options{})
	require.EqualError(t, err, "httpfence: guard: nil, want a guard")
	_, err = httpfence.NewAtomicMiddleware(orders, new(fence.Guard), httpfence.Options{MaxBody: -1})
	require.EqualError(t, err, "httpfence: Options.MaxBody: -1, want 0 for the default or more")
}

func TestNewAtomicMiddleware_boundsTheBody(t *testing.T) {
	var g fence.Guard
	var got string
	server := serve(t, atomicly(t, &g, httpfence.Options{MaxBody: 8})(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			got = string(body)
			if err != nil {
				t.Error(err)
			}
		})))
	resp, body := send(t, http.MethodPost, server.URL, "an order.", "54")
	requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "about:blank")
	require.Empty(t, got)
	require.Empty(t, g.Marks(), "a request that did not arrive raises no mark")

	resp, _ = send(t, http.MethodPost, server.URL, "an order", "54")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "an order", got)
}

func TestNewAtomicMiddleware_brokenBody(t *testing.T) {
	var g fence.Guard
	handler := atomicly(t, &g, httpfence.Options{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the handler has run")
	}))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", iotest.ErrReader(io.ErrUnexpectedEOF))
	r.Header.Set(httpfence.Header, "54")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	requireProblem(t, w.Result(), w.Body.String(), http.StatusBadRequest, "about:blank")
	require.Empty(t, g.Marks())
}
