// Package retry repeats requests to etcd: bounded attempts, pauses with jitter, and what each failure says about
// whether the request was carried out.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// Backoff counts the pauses between attempts: 25 ms, doubled each time up to a second, each cut by a random
// part of up to a half so that clients which failed together do not come back together. The zero value is ready.
type Backoff struct{ n int }

// Next is the next pause.
func (b *Backoff) Next() time.Duration {
	d := min(25*time.Millisecond<<b.n, time.Second)
	b.n = min(b.n+1, 6)
	return Jitter(d)
}

// Reset begins again with the shortest pause.
func (b *Backoff) Reset() { b.n = 0 }

// Sleep waits for the next pause. It returns ctx's cause if ctx ends first.
func (b *Backoff) Sleep(ctx context.Context) error { return b.sleep(ctx, ctx) }

// sleep returns the cause of whichever context ends first.
func (b *Backoff) sleep(ctx, life context.Context) error {
	t := time.NewTimer(b.Next())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-life.Done():
		return context.Cause(life)
	}
}

// Do calls do until it succeeds, fails for good or ctx ends. The first attempt's context ends after bound, the further
// ones' as [bounds] has it: an endpoint that does not answer is soon left for the next, which is the client's choice (it
// takes its ready endpoints in turn; see [Copies] too), and a network that is slow is waited for.
//
// When ctx ends, the error wraps ctx's cause and tells the last attempt's failure in words only: an
// attempt's own time-out must not match as the caller's.
func Do(ctx context.Context, client *clientv3.Client, bound time.Duration, do func(context.Context) error) error {
	return While(ctx, ctx, client, bound, do)
}

// While is [Do] that ends with life too, for its cause.
func While(ctx, life context.Context, client *clientv3.Client, bound time.Duration, do func(context.Context) error) error {
	var b Backoff
	var why error // there was no connection
	limit, copies := bounds{first: bound}, 1
	for {
		err := try(ctx, life, limit.next(), copies, do)
		if err == nil {
			return nil
		}
		why = Better(why, Unreachable(ctx, client))
		switch {
		case ctx.Err() != nil:
			return ended(context.Cause(ctx), err, why)
		case life.Err() != nil:
			return ended(context.Cause(life), err, why)
		case client.Ctx().Err() != nil:
			return fmt.Errorf("the etcd client is closed: %w", err)
		case !Transient(err):
			return explain(err)
		}
		if cause := b.sleep(ctx, life); cause != nil {
			return ended(cause, err, Better(why, Unreachable(ctx, client)))
		}
		Reconnect(client)
		limit.endpoints = endpointsOf(client)
		if !Refused(err) {
			copies = min(copies+1, limit.endpoints)
		}
	}
}

// bounds are how long the attempts of a request may take. After the first one as many as there are endpoints get up to
// twice as long, as many again twice as long as those, and so on up to eight times; less a random part of up to a half. They
// grow by turns and not by attempts, because the client's other requests move it on through its endpoints too: it may meet
// the same sick one a few times, and that says nothing about the others.
type bounds struct {
	first     time.Duration
	endpoints int // not asked for before the second attempt
	tries     int
}

func (b *bounds) next() time.Duration {
	turn := 0 // that this attempt is of
	if b.tries > 0 {
		turn = 1 + (b.tries-1)/b.endpoints
	}
	b.tries++
	if turn == 0 {
		return b.first
	}
	return Jitter(b.first << min(turn, 3))
}

// ended is the error of a call whose context ended with cause after an attempt failed with last, and while there was
// no connection if why is not nil.
func ended(cause, last, why error) error {
	if errors.Is(last, context.Canceled) || errors.Is(last, context.DeadlineExceeded) || errors.Is(last, cause) {
		return unconnected(cause, why) // the attempt tells no more than that
	}
	return fmt.Errorf("%w (last attempt: %s)", cause, last.Error())
}

// Jitter cuts a random part of up to a half off d. The client hands out its endpoints strictly in turn, so what
// runs in step may meet the same sick one each time.
func Jitter(d time.Duration) time.Duration { return d - rand.N(d/2) }

// ErrNotSent is wrapped by the error of a request that was given up before it was sent.
var ErrNotSent = errors.New("not sent")

// Transient reports whether the request that failed with err may succeed when it is sent again.
func Transient(err error) bool {
	if errors.Is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	switch Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Aborted:
		return true
	default:
		return false
	}
}

// Refused reports whether err is the server's or the client's word that the request was not carried out, or wraps
// [ErrNotSent]. After any other failure it may have been, or may still be.
func Refused(err error) bool {
	if errors.Is(err, ErrNotSent) {
		return true
	}
	if TooMuch(err) {
		return false
	}
	switch Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied,
		codes.Unauthenticated, codes.OutOfRange, codes.Unimplemented:
		return true
	case codes.ResourceExhausted:
		_, told := errors.AsType[rpctypes.EtcdError](err)
		return told || strings.Contains(err.Error(), "trying to send message larger than max")
	default:
		return false
	}
}

// TooMuch reports whether err says that there is no room for a request, or for its answer, so that a part of it may pass. It
// does not say that nothing was done. Where space runs out while a transaction waits to be applied, etcd applies it and
// answers with the error all the same (quotaApplierV3); and gRPC has the same words for a request that is too large for the
// server and an answer that is too large for the client.
func TooMuch(err error) bool {
	return errors.Is(err, rpctypes.ErrNoSpace) ||
		Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger than max")
}

// Code is the gRPC code of an error of etcd's client.
func Code(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(err)
}

// Reconnect makes a client without any connection try again now: gRPC's own back-off between attempts to
// connect grows to two minutes, longer than most leases.
func Reconnect(client *clientv3.Client) {
	if conn := client.ActiveConnection(); conn != nil && conn.GetState() == connectivity.TransientFailure {
		conn.ResetConnectBackoff()
	}
}
