package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff gives the pauses between attempts: 25 ms, doubled each time up to Longest, less a random part of up to a half.
// The jitter keeps clients that failed together from coming back together. The zero value is ready. A Backoff is not
// safe for concurrent use.
type Backoff struct {
	Longest time.Duration // the longest pause; less than a second counts as a second

	n int
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	pause := 25 * time.Millisecond << min(b.n, 16)
	b.n++
	return Jitter(min(pause, max(b.Longest, time.Second)))
}

// Reset starts again with the shortest pause.
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

// Do calls do until it succeeds, fails finally or ctx ends. The first attempt ends after bound: a short bound soon leaves
// an endpoint that does not answer for the next one. The later ones come in turns of as many as there are endpoints, with
// twice the bound in the first turn, four times in the second, eight times from the third on, less a random part of up to
// a half: that allows for a slow network. The bound grows by turns and not by attempts, because the client takes its
// endpoints in turn for all its requests, see [Attempt]: several attempts may meet the same sick endpoint, which says
// nothing about the others.
//
// When ctx ends, the error wraps ctx's cause, and contains the failure of the last attempt only as text: errors.Is
// must not match an attempt's own time-out as the caller's.
func (c *Conn) Do(ctx context.Context, bound time.Duration, do func(*Attempt) error) error {
	_, err := c.While(ctx, ctx, bound, do)
	return err
}

// While is [Conn.Do], but also ends when life ends, with life's cause. Late reports that the outcome of an attempt is
// unknown: whatever the error is, the request of that attempt may have been carried out, or may still be.
func (c *Conn) While(ctx, life context.Context, bound time.Duration, do func(*Attempt) error) (late bool, err error) {
	var b Backoff
	var last, why error // the last failure other than a context's end; the reason why there was no connection
	limit, copies := bound, 1
	for tries := 0; ; tries++ {
		a := &Attempt{conn: c, caller: ctx, life: life, bound: limit, copies: copies}
		err := a.try(do)
		if err == nil {
			return late, nil
		}
		late = late || !Refused(err)
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		why = Better(why, c.Unreachable(ctx))
		switch {
		case ctx.Err() != nil:
			return late, ended(context.Cause(ctx), last, why)
		case life.Err() != nil:
			return late, ended(context.Cause(life), last, why)
		case c.Client.Ctx().Err() != nil:
			return late, fmt.Errorf("the etcd client is closed: %w", err)
		case !Transient(err):
			return late, explain(err)
		}
		if cause := b.sleep(ctx, life); cause != nil {
			return late, ended(cause, last, Better(why, c.Unreachable(ctx)))
		}
		c.Reconnect()
		limit = Jitter(bound << min(1+tries/c.endpoints(), 3))
		if !Refused(err) && !TooMuch(err) { // else an endpoint has answered
			copies = min(copies+1, c.endpoints())
		}
	}
}

func (a *Attempt) try(do func(*Attempt) error) error {
	for _, ctx := range [...]context.Context{a.caller, a.life} {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
		}
	}
	defer a.close()
	return do(a)
}

// ended is the error of a call whose context ended with cause. last is the last failure of an attempt, or nil; why is
// the reason why there was no connection, or nil if there was one.
func ended(cause, last, why error) error {
	if why != nil || last == nil || errors.Is(last, cause) {
		return unconnected(cause, why)
	}
	return fmt.Errorf("%w (last attempt: %s)", cause, last.Error())
}

// Jitter takes a random part of up to a half off d. The client takes its endpoints strictly in turn, so requests at
// regular intervals could meet the same sick endpoint each time.
func Jitter(d time.Duration) time.Duration { return d - rand.N(d/2) }
