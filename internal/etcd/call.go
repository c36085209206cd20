package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff counts the pauses between attempts, see [Pause]. The zero value is ready.
type Backoff struct {
	Longest time.Duration // of the pauses; no less than a second

	n int
}

// Pause is how long to wait after n more failures in a row than the first: 25 ms, doubled each time up to longest, which is no
// less than a second, and cut by a random part of up to a half so that clients which failed together do not come back together.
func Pause(n int, longest time.Duration) time.Duration {
	return Jitter(min(25*time.Millisecond<<min(n, 16), max(longest, time.Second)))
}

// Next is the next pause.
func (b *Backoff) Next() time.Duration {
	b.n++
	return Pause(b.n-1, b.Longest)
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

// Do calls do until it succeeds, fails finally or ctx ends. The first attempt ends after bound, the further ones as [bounds]
// has it: an endpoint that does not answer is soon left for the next, which is the client's choice (it takes its ready
// endpoints in turn; see [Attempt] too), and a network that is slow is waited for.
//
// When ctx ends, the error wraps ctx's cause and tells the last attempt's failure in words only: an
// attempt's own time-out must not match as the caller's.
func (c *Conn) Do(ctx context.Context, bound time.Duration, do func(*Attempt) error) error {
	_, err := c.While(ctx, ctx, bound, do)
	return err
}

// While is [Conn.Do] that ends with life too, for its cause. Late says that an attempt failed and was not refused: whatever the
// error is, what it asked for may have been done, or may yet be.
func (c *Conn) While(ctx, life context.Context, bound time.Duration, do func(*Attempt) error) (late bool, err error) {
	var b Backoff
	var last, why error // the last failure but a context's end, and why there was no connection
	limit, copies := bounds{first: bound}, 1
	for {
		a := &Attempt{conn: c, caller: ctx, life: life, bound: limit.next(), copies: copies}
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
		limit.endpoints = c.endpoints()
		if !Refused(err) && !TooMuch(err) { // an endpoint has answered
			copies = min(copies+1, limit.endpoints)
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

// ended is the error of a call whose context ended with cause. Last is the last failure of an attempt, nil if none
// did; why is not nil if there was no connection.
func ended(cause, last, why error) error {
	if why != nil || last == nil || errors.Is(last, cause) {
		return unconnected(cause, why)
	}
	return fmt.Errorf("%w (last attempt: %s)", cause, last.Error())
}

// Jitter cuts a random part of up to a half off d. The client hands out its endpoints strictly in turn, so what
// runs in step may meet the same sick one each time.
func Jitter(d time.Duration) time.Duration { return d - rand.N(d/2) }
