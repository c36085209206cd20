package retry

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The client takes its endpoints in turn, for all its requests alike. A request that is sent again may therefore meet the
// endpoint at which it failed again, and what else the client does at regular times can see to it that it always does. So an
// attempt after one that failed, and was not refused, sends what it asks more than once, at the same time, and takes the first
// answer. For the server that is nothing new: it is an attempt whose answer is lost, and another one.

// endpointsOf is how many endpoints a client has, the usual number where it does not tell.
func endpointsOf(client *clientv3.Client) int {
	const usual = 3
	if n := len(client.Endpoints()); n > 0 {
		return n
	}
	return usual
}

type copiesKey struct{}

// copying is how an attempt sends copies.
type copying struct {
	n     int
	pause time.Duration // between one and the next, while none is answered
}

func copyingOf(ctx context.Context) copying {
	if c, ok := ctx.Value(copiesKey{}).(copying); ok {
		return c
	}
	return copying{n: 1}
}

// Copies is how many requests an attempt sends for each one, at least 1. Where it is more, what changes something may have
// been done by another copy when an answer says that it could not be done. Who repeats a single request knows that it may
// have been done before, for what was refused is not copied; who asks several things in an attempt has to look here.
func Copies(ctx context.Context) int { return copyingOf(ctx).n }

// WithCopies is a context for an attempt that sends n requests for each one.
func WithCopies(ctx context.Context, n int) context.Context {
	if n <= 1 {
		return ctx
	}
	return context.WithValue(ctx, copiesKey{}, copying{n: n})
}

// Everywhere is a context for an attempt that sends as many requests for each one as there are endpoints.
func Everywhere(ctx context.Context, client *clientv3.Client) context.Context {
	return WithCopies(ctx, endpointsOf(client))
}

// Beside is [Everywhere], where each request but the first is sent only if there is no answer after a further pause.
func Beside(ctx context.Context, client *clientv3.Client, pause time.Duration) context.Context {
	return context.WithValue(ctx, copiesKey{}, copying{n: endpointsOf(client), pause: pause})
}

// Get is [Send] of the client's Get.
func Get(ctx context.Context, client *clientv3.Client, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return Send(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) { return client.Get(ctx, key, opts...) })
}

// Txn is [Send] of a transaction of the client's.
func Txn(ctx context.Context, client *clientv3.Client, cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	if Copies(ctx) == 1 { // without an allocation
		return commit(ctx, client, cmps, then, or)
	}
	return Send(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) { return commit(ctx, client, cmps, then, or) })
}

func commit(ctx context.Context, client *clientv3.Client, cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	return client.Txn(ctx).If(cmps...).Then(then...).Else(or...).Commit()
}

// Send sends a request in as many copies as the attempt has. It returns the first answer, or a failure that another attempt
// does not mend. If all fail otherwise, it is one that leaves open whether the request was carried out, if there is one. It
// returns when all have ended.
func Send[T any](ctx context.Context, send func(context.Context) (T, error)) (T, error) {
	c := copyingOf(ctx)
	if c.n <= 1 {
		return send(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		answer T
		err    error
	}
	outcomes := make(chan outcome)
	under := 0 // way
	next := time.NewTimer(c.pause)
	defer next.Stop()
	another := func() {
		c.n--
		under++
		go func() {
			answer, err := send(ctx)
			outcomes <- outcome{answer, err}
		}()
		next.Reset(c.pause)
	}
	another()
	best := outcome{err: errNone}
	for under > 0 {
		select {
		case <-next.C:
			if c.n > 0 && !final(best.err) {
				another()
			}
		case o := <-outcomes:
			under--
			if !final(best.err) && (final(o.err) || Refused(best.err)) {
				best = o
			}
			if final(best.err) {
				cancel() // the others
			}
		}
	}
	return best.answer, best.err
}

// errNone stands for no outcome yet: any other is better.
var errNone = fmt.Errorf("%w: %w", ErrNotSent, context.Canceled)

// final reports whether err, which may be nil, is how the request ends.
func final(err error) bool { return err == nil || !Transient(err) }
