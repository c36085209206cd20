package httpfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/leasefence/leasefence/fence"
)

const defaultMaxBody = 1 << 20

var (
	errBody       = errors.New("httpfence: read the body")
	errNoResource = errors.New("httpfence: the request names no resource")
)

// Options are what may be set for a middleware. The zero value is the default.
type Options struct {
	// Writes reports whether a request writes: then it needs a token, which is checked. The default is every
	// method but GET, HEAD and OPTIONS.
	//
	// The token of another request is never checked and raises no mark, since a reader must not fence a writer. If
	// it has one it must be well-formed all the same, and its context carries it.
	Writes func(*http.Request) bool

	// Refuse answers a request that does not reach the handler, in place of the default. The error matches
	// [fence.ErrStale], [fence.ErrInvalidToken] or [ErrMissing], or says why the token could not be checked;
	// [Error] answers the first three.
	//
	// The default answers with a problem (RFC 9457): those of [Error]; 413 for a body that is too large and 400
	// for one that cannot be read, both by [NewAtomicMiddleware] only; 500 if the request names no resource; 503
	// for any other error of the check. Of these it tells no more than the status.
	Refuse func(w http.ResponseWriter, r *http.Request, err error)

	// MaxBody is the number of bytes that [NewAtomicMiddleware] reads of a body at most. The default is 1 MiB.
	// [NewMiddleware] leaves bodies alone.
	MaxBody int64
}

// GuardCheck returns the check of a guard in memory, for [NewMiddleware]. It is nil if g is nil.
func GuardCheck(g *fence.Guard) func(ctx context.Context, resource string, t fence.Token) error {
	if g == nil {
		return nil
	}
	return func(_ context.Context, resource string, t fence.Token) error { return g.Check(resource, t) }
}

// NewMiddleware returns a middleware that refuses requests early: check is called before the handler, with the
// request's context, its resource and its token, and the handler is not called if check returns an error. The
// handler finds the token with [fence.FromContext].
//
// It does not decide: a newer token may be accepted after check has returned and before the handler writes, so the
// handler still has to hand the token to its store, which compares it in one step with the write. [Error] answers
// with the store's refusal. Where the resource lives in this process, [NewAtomicMiddleware] leaves no such gap.
//
// The resource function names the resource that a request writes to. Let there be a bounded number of names, for a
// mark is never forgotten. It is not called for a request that does not write. If it returns "" the request is refused:
// a path value, for one, is empty in a middleware that stands before the [http.ServeMux].
//
// The error names what is nil or out of range. The middleware is safe for concurrent use; if the handler that it is
// given is nil it answers 404 in its place.
func NewMiddleware(
	resource func(*http.Request) string,
	check func(ctx context.Context, resource string, t fence.Token) error,
	opts Options,
) (func(http.Handler) http.Handler, error) {
	if check == nil {
		return nil, errors.New("httpfence: check: nil, want a function")
	}
	return newMiddleware(resource, opts,
		func(next http.Handler, w http.ResponseWriter, r *http.Request, name string, t fence.Token) error {
			if err := check(r.Context(), name, t); err != nil {
				return err
			}
			next.ServeHTTP(w, r)
			return nil
		})
}

// NewAtomicMiddleware is [NewMiddleware] for a resource in this process: it calls the handler inside [fence.Guard.Do],
// so that check and handler are one atomic step. While the handler of one token runs, no newer token is accepted for
// the resource and no other handler runs for it; once a newer token has been accepted, no handler of an older one is
// running or will run.
//
// Newer tokens wait for the handler, so it must not wait for its client, which may be a holder that is paused. The
// body is therefore read before, up to Options.MaxBody. A response that is larger than what the connection
// buffers still waits to be read: bound it with [http.Server.WriteTimeout]. The handler must not call the guard
// for the resource, as with Do.
func NewAtomicMiddleware(
	resource func(*http.Request) string, guard *fence.Guard, opts Options,
) (func(http.Handler) http.Handler, error) {
	if guard == nil {
		return nil, errors.New("httpfence: guard: nil, want a guard")
	}
	limit := opts.MaxBody
	if limit == 0 {
		limit = defaultMaxBody
	}
	return newMiddleware(resource, opts,
		func(next http.Handler, w http.ResponseWriter, r *http.Request, name string, t fence.Token) error {
			if err := readBody(w, r, limit); err != nil {
				return err
			}
			return guard.Do(name, t, func() error {
				next.ServeHTTP(w, r)
				return nil
			})
		})
}

// serve calls next, or returns an error and has not called it.
type serve func(next http.Handler, w http.ResponseWriter, r *http.Request, resource string, t fence.Token) error

func newMiddleware(
	resource func(*http.Request) string, opts Options, serve serve,
) (func(http.Handler) http.Handler, error) {
	if resource == nil {
		return nil, errors.New("httpfence: resource: nil, want a function")
	}
	if opts.MaxBody < 0 {
		return nil, fmt.Errorf("httpfence: Options.MaxBody: %d, want 0 for the default or more", opts.MaxBody)
	}
	if opts.Writes == nil {
		opts.Writes = writes
	}
	if opts.Refuse == nil {
		opts.Refuse = refuse
	}
	pass := func(next http.Handler, w http.ResponseWriter, r *http.Request) error {
		t, err := FromHeader(r.Header)
		writes := opts.Writes(r)
		if errors.Is(err, ErrMissing) && !writes {
			next.ServeHTTP(w, r)
			return nil
		}
		if err != nil {
			return err
		}
		r = r.WithContext(fence.NewContext(r.Context(), t))
		if !writes {
			next.ServeHTTP(w, r)
			return nil
		}
		name := resource(r)
		if name == "" {
			return errNoResource
		}
		return serve(next, w, r, name, t)
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			next = http.NotFoundHandler()
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := pass(next, w, r); err != nil {
				opts.Refuse(w, r, err)
			}
		})
	}, nil
}

func writes(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return true
}

// readBody puts r's body in memory. The request is the middleware's own copy.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return fmt.Errorf("%w: %w", errBody, err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}
