package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// A server that owns its stock, and two holders. The first is paused for longer than its lease, and the server refuses
// the request that it sends when it wakes up.
func Example() {
	var guard fence.Guard
	stock := 10
	fenced, err := httpfence.NewAtomicMiddleware(
		func(*http.Request) string { return "stock" }, &guard, httpfence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /claim", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /sell", func(http.ResponseWriter, *http.Request) { stock-- })
	server := httptest.NewServer(fenced(mux))
	defer server.Close()

	transport, err := httpfence.NewTransport(nil, strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	call := func(ctx context.Context, path string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		return errors.Join(httpfence.ReadError(resp), resp.Body.Close())
	}

	paused := fence.NewContext(context.Background(), 41) // a lock's context carries its token
	successor := fence.NewContext(context.Background(), 54)
	fmt.Println("first:", call(paused, "/sell"))
	fmt.Println("successor:", call(successor, "/claim"))
	late := call(paused, "/sell")
	fmt.Println("first, late:", late)
	fmt.Println("stop this tenure:", errors.Is(late, fence.ErrStale))
	fmt.Println("stock:", stock)
	// Output:
	// first: <nil>
	// successor: <nil>
	// first, late: fence: stale token 41 for "stock": highest seen is 54
	// stop this tenure: true
	// stock: 9
}

// A reader of the stock. Once its request is accepted, earlier writers are refused. Before it answers, it checks that
// no later writer has come.
func Example_readers() {
	var guard fence.Guard
	var stock atomic.Int64
	stock.Store(10)
	fenced, err := httpfence.NewAtomicMiddleware(
		func(*http.Request) string { return "stock" }, &guard, httpfence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sell", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "%d left", stock.Add(-1))
	})
	mux.HandleFunc("GET /left", func(w http.ResponseWriter, r *http.Request) {
		left := stock.Load()
		reader, ok := fence.ReadFromContext(r.Context())
		if ok && httpfence.Error(w, guard.CheckReadContext(r.Context(), "stock", reader)) {
			return
		}
		_, _ = fmt.Fprintf(w, "%d left", left)
	})
	server := httptest.NewServer(fenced(mux))
	defer server.Close()

	transport, err := httpfence.NewTransport(nil, strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	call := func(ctx context.Context, method, path string) string {
		r, err := http.NewRequestWithContext(ctx, method, server.URL+path, nil)
		if err != nil {
			return err.Error()
		}
		resp, err := client.Do(r)
		if err != nil {
			return err.Error()
		}
		refusal := httpfence.ReadError(resp)
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(refusal, err, resp.Body.Close()); err != nil {
			return err.Error()
		}
		return fmt.Sprint(resp.StatusCode, " ", string(body))
	}

	paused := fence.NewContext(context.Background(), 41)
	reader := fence.NewReadContext(context.Background(), 54) // the context of a read lock carries its token
	fmt.Println("writer:", call(paused, http.MethodPost, "/sell"))
	fmt.Println("reader:", call(reader, http.MethodGet, "/left"))
	fmt.Println("writer, late:", call(paused, http.MethodPost, "/sell"))
	fmt.Println("reader that writes:", call(reader, http.MethodPost, "/sell"))
	// Output:
	// writer: 200 9 left
	// reader: 200 9 left
	// writer, late: fence: stale token 41 for "stock": highest seen of a reader is 54
	// reader that writes: httpfence: no fencing token: refused with status 428
}

// The middleware refuses early. The store decides, and Error writes its refusal as the response.
func ExampleError() {
	update := func(_ context.Context, token fence.Token) error { // one step in the store: compare, then write
		return &fence.StaleError{Resource: "orders", Token: token, Highest: 54}
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		token, _ := fence.FromContext(r.Context())
		err := update(r.Context(), token)
		switch {
		case httpfence.Error(w, err): // answered
		case err != nil:
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
	}

	r := httptest.NewRequest(http.MethodPut, "/orders/1", nil)
	w := httptest.NewRecorder()
	handler(w, r.WithContext(fence.NewContext(r.Context(), 41)))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	fmt.Println(strings.ReplaceAll(w.Body.String(), `,"`, ",\n\""))
	// Output:
	// 412 application/problem+json
	// {"detail":"fence: stale token 41 for \"orders\": highest seen is 54",
	// "highest":"54",
	// "resource":"orders",
	// "status":412,
	// "title":"Fencing token stale",
	// "token":"41",
	// "type":"https://pkg.go.dev/github.com/leasefence/leasefence/fence/httpfence#TypeStale"}
}

// A resource for each part of the path, checked by a store that several servers share. The resource function stands
// behind the mux, where the path value is known.
func ExampleNewMiddleware() {
	check := func(_ context.Context, resource string, t fence.Token) error {
		if mark := fence.Token(54); t < mark { // read from the store
			return &fence.StaleError{Resource: resource, Token: t, Highest: mark}
		}
		return nil
	}
	region := func(r *http.Request) string { return "orders/" + r.PathValue("region") }
	fenced, err := httpfence.NewMiddleware(region, check, httpfence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/orders/{region}", fenced(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := fence.FromContext(r.Context())
		_, _ = fmt.Fprintln(w, r.Method, token, ok)
	})))

	send := func(method, token string) {
		r := httptest.NewRequest(method, "/orders/eu", nil)
		if token != "" {
			r.Header.Set(httpfence.Header, token)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if err := httpfence.ReadError(w.Result()); err != nil {
			fmt.Println(w.Code, err)
			return
		}
		fmt.Print(w.Code, " ", w.Body)
	}
	send(http.MethodPost, "54")
	send(http.MethodGet, "")
	send(http.MethodPost, "41")
	send(http.MethodPost, "")
	send(http.MethodPost, "054")
	// Output:
	// 200 POST 54 true
	// 200 GET 0 false
	// 412 fence: stale token 41 for "orders/eu": highest seen is 54
	// 428 httpfence: no fencing token: refused with status 428
	// 400 fence: invalid token: refused with status 400
}
