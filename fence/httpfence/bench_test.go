package httpfence_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// BenchmarkMiddleware shows what a middleware adds to a handler that does nothing, without a network.
func BenchmarkMiddleware(b *testing.B) {
	handler := http.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	run := func(name, token string, wrap func(*fence.Guard) (func(http.Handler) http.Handler, error)) {
		b.Run(name, func(b *testing.B) {
			var g fence.Guard
			if err := g.Claim("orders", 54); err != nil {
				b.Fatal(err)
			}
			middleware, err := wrap(&g)
			if err != nil {
				b.Fatal(err)
			}
			served := middleware(handler)
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/", http.NoBody)
			r.Header.Set(httpfence.Header, token)
			w := discard{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				served.ServeHTTP(w, r)
			}
		})
	}
	early := func(g *fence.Guard) (func(http.Handler) http.Handler, error) {
		return httpfence.NewMiddleware(orders, httpfence.GuardCheck(g), httpfence.Options{})
	}
	run("without", "54", func(*fence.Guard) (func(http.Handler) http.Handler, error) {
		return func(next http.Handler) http.Handler { return next }, nil
	})
	run("early", "54", early)
	run("atomic", "54", func(g *fence.Guard) (func(http.Handler) http.Handler, error) {
		return httpfence.NewAtomicMiddleware(orders, g, httpfence.Options{})
	})
	run("refused", "41", early)
}

func BenchmarkTransport(b *testing.B) {
	base := roundTrip(func(*http.Request) (*http.Response, error) { return &http.Response{}, nil })
	fenced, err := httpfence.NewTransport(base, "store.example")
	if err != nil {
		b.Fatal(err)
	}
	for name, transport := range map[string]http.RoundTripper{"without": base, "with": fenced} {
		b.Run(name, func(b *testing.B) {
			ctx := fence.NewContext(b.Context(), 54)
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://store.example/orders", http.NoBody)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := transport.RoundTrip(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
