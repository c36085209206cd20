package httpfence

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

const defaultMaxBody = 1 << 20

var (
	errBody       = errors.New("httpfence: read the request's body")
	errNoResource = errors.New("httpfence: the request names no resource")

	errLongResource = errors.New("httpfence: the request's resource is too long")

	errTimeoutHandler = errors.New("httpfence: http.TimeoutHandler returns before its handler: " +
		"put it around the middleware, not inside")
)

// Options are the settings of a middleware. The zero value of a field is its default.
type Options struct {
	// Writes reports whether a request writes. Such a request needs a token, and the middleware checks it. By default
	// every method writes except GET, HEAD and OPTIONS.
	//
	// For a request that writes, the token of a read lock does not count. Other requests need no token. If they have
	// one it must be well-formed, and the context carries it. A writer's token is then not checked and raises no mark,
	// since a request that only reads must not fence a writer. The token of a read lock is checked if there is a check
	// for it; see CheckRead.
	Writes func(*http.Request) bool

	// CheckRead is the check of [NewMiddleware] for a request that does not write and has the token of a read lock. The
	// handler runs only if it returns nil. From then on a writer that is older than the reader must be refused, or it
	// could write while the handler reads. So for a store, call its claim for readers; for a guard, use
	// [fence.Guard.CheckReadContext]. By default such a token is not checked.
	//
	// [NewAtomicMiddleware] checks with its guard, and CheckRead must be nil.
	CheckRead func(ctx context.Context, resource string, t fence.ReadToken) error

	// Refuse writes the response to a request that is refused. The error matches [fence.ErrStale],
	// [fence.ErrOtherLock], [fence.ErrInvalidToken] or [ErrMissing], for which [Error] writes the response, or tells
	// why the token could not be checked.
	//
	// The default writes a problem (RFC 9457): that of [Error]; 413 if the body is too large and 400 if it cannot be
	// read, both with [NewAtomicMiddleware] only; 500 if the request names no resource or if NewAtomicMiddleware wraps
	// an [http.TimeoutHandler]; 400 if the resource's name is too long; 503 for any other error of the check, and if
	// the request's context ends while it waits.
	Refuse func(w http.ResponseWriter, r *http.Request, err error)

	// MaxBody is the largest body, in bytes, that [NewAtomicMiddleware] accepts: 1 or more, default 1 MiB.
	// [NewMiddleware] does not read bodies.
	MaxBody int64
}

// NewMiddleware returns a middleware that refuses requests early. It calls check, for example
// [fence.Guard.CheckContext], with the request's context, resource and token, and calls the handler only if check
// returns nil. The handler gets the token with [fence.FromContext], and check and handler get the name of its lock, if
// the request has it, with [fence.LockFromContext].
//
// A newer token may be accepted after check has returned and before the handler writes. So the handler must pass the
// token to its store, which compares it in one step with the write, and write the store's refusal with [Error]. For a
// resource in this process, [NewAtomicMiddleware] has no such gap.
//
// resource returns the name of the resource that a request writes to, or that a reader reads. It is called only for a
// request whose token is checked. Use a bounded number of names, because marks are never deleted. If it returns "" or
// more than [fence.MaxResource] bytes, the request is refused. Path values, for example, are empty in a middleware
// around the [http.ServeMux].
//
// The error names the argument or option that is nil or out of range. The middleware is safe for concurrent use. For a
// nil handler it answers 404.
func NewMiddleware(
	resource func(*http.Request) string,
	check func(ctx context.Context, resource string, t fence.Token) error,
	opts Options,
) (func(http.Handler) http.Handler, error) {
	if check == nil {
		return nil, errors.New("httpfence: check is nil, want a function")
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

// NewAtomicMiddleware is [NewMiddleware] for a resource in this process. It calls the handler inside
// [fence.Guard.DoContext], so check and handler are one atomic step. While a handler runs, no newer token is accepted
// for the resource and no other handler runs for it. Once a newer token was accepted, no handler of an older token is
// running or will run.
//
// The handler must be done when it returns. Put [http.TimeoutHandler], and any other handler that returns before its
// inner handler, around the middleware: then the client gets its answer in time, and newer tokens wait until the inner
// handler has returned. The middleware refuses an http.TimeoutHandler inside it, directly or behind a [http.ServeMux],
// with 500. It cannot detect others, but ends the request's context when the handler has returned and before it accepts
// a newer token.
//
// Newer tokens wait for the handler until their requests' contexts end. The handler must therefore not wait for its
// client, which may be a paused holder. The middleware reads the body before, up to Options.MaxBody. A response that
// exceeds the connection's buffers still waits for the client: set [http.Server.WriteTimeout]. Bound any other wait of
// the handler with its context. The handler must not call the guard for its resource; see [fence.Guard.Do].
//
// The handler of a request that does not write runs outside of the guard, beside any other. For the token of a read
// lock the middleware calls [fence.Guard.CheckReadContext] first: it waits for the handler of an older writer, and none
// runs from then on. A newer writer's handler may run beside the reader's, which has lost its lock by then. To avoid an
// answer with data that was read meanwhile, the reader's handler calls [fence.Guard.CheckReadContext] after its reads.
// Data that handlers share needs a mutex.
func NewAtomicMiddleware(
	resource func(*http.Request) string, guard *fence.Guard, opts Options,
) (func(http.Handler) http.Handler, error) {
	if guard == nil {
		return nil, errors.New("httpfence: guard is nil, want a *fence.Guard")
	}
	if opts.CheckRead != nil {
		return nil, errors.New("httpfence: Options.CheckRead is set, want nil: NewAtomicMiddleware checks with its guard")
	}
	opts.CheckRead = guard.CheckReadContext
	limit := cmp.Or(opts.MaxBody, defaultMaxBody)
	return newMiddleware(resource, opts,
		func(next http.Handler, w http.ResponseWriter, r *http.Request, name string, t fence.Token) error {
			if returnsEarly(next, r) {
				return errTimeoutHandler
			}
			if err := readBody(w, r, limit); err != nil {
				return err
			}
			work, cancel := context.WithCancel(r.Context()) // not for the guard: its hooks get a context that goes on
			defer cancel()
			return guard.DoContext(r.Context(), name, t, func() error {
				defer cancel() // before a newer token is accepted: work that the handler left running gets the signal to stop
				next.ServeHTTP(w, r.WithContext(work))
				return nil
			})
		})
}

var timeoutHandler = reflect.TypeOf(http.TimeoutHandler(nil, 0, ""))

// returnsEarly reports whether h is an [http.TimeoutHandler], or a ServeMux that serves r with one.
func returnsEarly(h http.Handler, r *http.Request) bool {
	for {
		mux, ok := h.(*http.ServeMux)
		if !ok {
			return reflect.TypeOf(h) == timeoutHandler
		}
		h, _ = mux.Handler(r)
	}
}

// serve calls next, or returns an error without calling it.
type serve func(next http.Handler, w http.ResponseWriter, r *http.Request, resource string, t fence.Token) error

func newMiddleware(
	resource func(*http.Request) string, opts Options, serve serve,
) (func(http.Handler) http.Handler, error) {
	if resource == nil {
		return nil, errors.New("httpfence: resource is nil, want a function")
	}
	if opts.MaxBody < 0 {
		return nil, fmt.Errorf("httpfence: Options.MaxBody is %d, want 1 or more, or 0 for 1 MiB", opts.MaxBody)
	}
	if opts.Writes == nil {
		opts.Writes = writes
	}
	if opts.Refuse == nil {
		opts.Refuse = refuse
	}
	pass := func(next http.Handler, w http.ResponseWriter, r *http.Request) error {
		t, err := wire.Carried("header", headers, r.Header.Values)
		writes := opts.Writes(r)
		if !writes {
			// A cache must not answer with the response to another holder. A reader's request may be a claim, and a writer
			// that has claimed must not get what its predecessor got.
			for _, header := range headers {
				w.Header().Add("Vary", header)
			}
		}
		switch {
		case err != nil:
			return err
		case writes && t.Write == 0:
			return ErrMissing
		case t.Write != 0 || t.Read != 0:
			r = r.WithContext(t.In(r.Context()))
		}
		if !writes && (t.Read == 0 || opts.CheckRead == nil) {
			next.ServeHTTP(w, r)
			return nil
		}
		name := resource(r)
		switch {
		case name == "":
			return errNoResource
		case len(name) > fence.MaxResource:
			return fmt.Errorf("%w: %d bytes, want 1 to %d", errLongResource, len(name), fence.MaxResource)
		}
		if writes {
			return serve(next, w, r, name, t.Write)
		}
		if err := opts.CheckRead(r.Context(), name, t.Read); err != nil {
			return err
		}
		next.ServeHTTP(w, r)
		return nil
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

// readBody reads r's body into memory. r is the middleware's copy of the request.
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

// Header is the request header that carries the token, in the decimal form that [fence.Token.String] writes.
const Header = "Fencing-Token"

// ReadHeader is [Header] for the token of a read lock. A server that knows only writers finds no token in such a
// request and refuses it if it writes. A request has one of the two headers.
const ReadHeader = "Fencing-Read-Token"

// LockHeader is the request header that carries the name of the lock that the token belongs to, beside [Header] or
// [ReadHeader]; see [fence.WithLock]. In the name, "%" and two upper-case hex digits stand for each byte except A-Z,
// a-z, 0-9 and "-._~/". A token may come without it. A server that does not know it takes the token of any lock.
const LockHeader = "Fencing-Lock"

// ErrMissing reports that a request that writes has no token. It is a mistake of the caller and not a lost lock.
var ErrMissing = errors.New("httpfence: no fencing token")
