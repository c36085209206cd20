package s3fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// Put writes an object if no newer token has been seen for it, in one atomic step. Nil is an empty payload.
//
// On success the object has the payload, and the context's token is its mark. It is not written, and the mark is
// unchanged, if the error is a [*fence.StaleError], which has the mark as the highest token, or matches
// [fence.ErrInvalidToken] (no token in the context), [ErrMalformed] (what is there has no envelope) or [ErrContended].
// If it matches [ErrUnknown] the write was done or not; it can match [fence.ErrStale] too, since a newer token was
// seen after it. Any other error is the client's and says that nothing was written.
//
// It reads the first 128 bytes and writes: two requests, if nobody is in the way.
func (b *Bucket) Put(ctx context.Context, key string, payload []byte) error {
	token, err := b.admit(ctx, "put", key)
	if err != nil {
		return err
	}
	if err := b.checkSize("put", key, payload); err != nil {
		return err
	}
	return b.change(ctx, change{
		verb: "put", key: key, token: token, read: b.readHeader,
		next: func(reading) (state, []byte, error) { return written, payload, nil },
	})
}

// Claim installs a tenure: it is called once after a grant, before the tenure's first read of the object, for a mark
// protects nothing until the new token has reached it. Repeating it does no harm.
//
// It writes the object with the context's token and the payload that it has. If there is no object it makes one that
// has a mark and no payload, for which [Bucket.Get] gives [ErrNoObject]: so the first write is fenced too. If the
// mark is the token already, nothing is written. On success no older token is accepted from then on, writes that are
// under way included. The errors are those of [Bucket.Put]; after [ErrUnknown] call it again.
func (b *Bucket) Claim(ctx context.Context, key string) error {
	token, err := b.admit(ctx, "claim", key)
	if err != nil {
		return err
	}
	return b.change(ctx, change{
		verb: "claim", key: key, token: token, read: b.read,
		next: func(old reading) (state, []byte, error) {
			switch {
			case old.token == token:
				return 0, nil, errNothingToDo
			case old.etag == "":
				return claimed, nil, nil
			default:
				return old.state, old.payload, nil
			}
		},
	})
}

// Update writes what fn makes of the payload, if nobody has written meanwhile; else it reads again and calls fn again.
// So fn may be called several times, and only what it returned last is written. It gets nil if there is no object or
// if it has been claimed and never written, and may keep and change what it gets.
//
// If fn returns an error nothing is written, and Update's error wraps it. Otherwise success and the errors are those
// of [Bucket.Put]; after [ErrUnknown] what fn returned last was written or not, and fn has not been called again.
func (b *Bucket) Update(ctx context.Context, key string, fn func(old []byte) ([]byte, error)) error {
	token, err := b.admit(ctx, "update", key)
	if err != nil {
		return err
	}
	if fn == nil {
		return fmt.Errorf("s3fence: update %q: fn is nil, want a function", b.resource(key))
	}
	return b.change(ctx, change{
		verb: "update", key: key, token: token, read: b.read,
		next: func(old reading) (state, []byte, error) {
			var payload []byte
			if old.state == written {
				payload = old.payload
			}
			payload, err := fn(payload)
			if err != nil {
				return 0, nil, err
			}
			return written, payload, b.checkSize("update", key, payload)
		},
	})
}

// errNothingToDo is returned by a change's next.
var errNothingToDo = errors.New("nothing to do")

// change is a fenced write.
type change struct {
	verb, key string
	token     fence.Token
	read      func(ctx context.Context, key string) (reading, error)
	next      func(old reading) (state, []byte, error) // what is to be written in place of old
}

// change carries out c. Why it is safe:
//
// A write is conditional on the ETag of what was read, whose token was compared. The id makes every write's bytes, and
// so its ETag, unlike any other's: while the ETag is the same, nothing has been written.
//
// All attempts on one base, that is on one ETag, carry the same bytes, so at most one of them is done and it does not
// matter which: each consumes the base. A new base, and new bytes, are taken only if every attempt on the old one was
// answered "not done"; a late one cannot be done any more, since its base is gone.
func (b *Bucket) change(ctx context.Context, c change) error {
	base, err := c.read(ctx, c.key)
	if err != nil {
		return b.explain(c.verb, c.key, err)
	}
	for attempt := 1; ; {
		if err := b.refuse(c.key, c.token, base); err != nil {
			return err
		}
		st, payload, err := c.next(base)
		if errors.Is(err, errNothingToDo) {
			return nil
		}
		if err != nil {
			return b.explain(c.verb, c.key, err)
		}
		h := header{token: c.token, id: newID(), prev: base.id, state: st}
		now, err := b.replace(ctx, c, base, h, seal(h, payload), &attempt)
		if err != nil || now == nil {
			return err
		}
		base = *now
	}
}

// replace writes body, whose header is h, in place of base. It returns nil if that is done, and what is there now if
// base has gone without it.
func (b *Bucket) replace(
	ctx context.Context, c change, base reading, h header, body []byte, attempt *int,
) (*reading, error) {
	unknown := false // an attempt may have been done, or may be yet
	fail := func(err error) error {
		if unknown {
			err = fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		return b.explain(c.verb, c.key, err)
	}
	for ; ; *attempt++ {
		if err := ctx.Err(); err != nil { // else what was never sent would count as unclear
			return nil, fail(err)
		}
		_, err := b.putIf(ctx, c.key, base.etag, body)
		switch classify(err) {
		case done:
			return nil, nil //nolint:nilnil // Done: there is nothing to go on from.
		case refused:
			return nil, fail(err)
		case unclear:
			unknown = true
		case conflict, unsent:
		}
		// The last attempt is followed by a reading too: it may have been done.
		if waitErr := b.wait(ctx, *attempt); waitErr != nil {
			return nil, fail(fmt.Errorf("%w, after: %w", waitErr, err))
		}
		now, readErr := c.read(ctx, c.key)
		switch {
		case readErr != nil:
			return nil, fail(fmt.Errorf("reading it back: %w, after: %w", readErr, err))
		case now.id == h.id || now.prev == h.id:
			// An answer that was lost, or given to a copy of this request that a proxy made.
			return nil, nil //nolint:nilnil // Done, as above.
		}
		// The id too: a store that looks up an ETag and a content one after the other gives the one of before with the
		// other of now.
		gone := now.id != base.id || now.etag != base.etag
		stale := b.refuse(c.key, c.token, now)
		switch {
		case gone && stale != nil && !unknown:
			return nil, stale
		case gone && stale != nil:
			return nil, fail(stale)
		case gone && unknown:
			return nil, fail(fmt.Errorf("others have written since: %w", err))
		case *attempt >= b.opts.Attempts && unknown:
			return nil, fail(err)
		case *attempt >= b.opts.Attempts:
			return nil, fail(fmt.Errorf("%w: %d: %w", ErrContended, *attempt, err))
		case gone:
			*attempt++
			return &now, nil
		}
	}
}

// maxGrowth is how often Options.Backoff the longest wait is at most.
const maxGrowth = 100

// wait waits a random time before what follows an attempt.
func (b *Bucket) wait(ctx context.Context, attempt int) error {
	longest := b.opts.Backoff * time.Duration(min(maxGrowth, 1<<min(attempt-1, 10)))
	timer := time.NewTimer(rand.N(longest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
