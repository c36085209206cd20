package s3fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasefence/leasefence/fence/internal/admission"
)

// Put writes an object in one atomic step, unless its mark is newer than the context's token. A nil payload is empty.
//
// On success the object has the payload, the context's token is its mark, and if it followed no lock it follows the
// token's. The object and its mark are unchanged if the error is a [*fence.StaleError], which has the newer mark as the
// highest token, or a [*fence.OtherLockError] (the object follows another lock, or follows one and the token came
// without a name), or matches [fence.ErrInvalidToken] (no token in the context, or an illegal name of its lock),
// [ErrMalformed] (the object has no envelope) or [ErrContended]. If the error matches [ErrUnknown], the write may have
// been done; it then also matches [fence.ErrStale] or [fence.ErrOtherLock] if a newer token or another lock was seen
// afterwards. Any other error is the client's: nothing was written.
//
// Put sends two requests if no other writer interferes: it reads at most 7 KiB and writes.
func (b *Bucket) Put(ctx context.Context, key string, payload []byte) error {
	return b.change(ctx, change{
		verb: "put", key: key, read: b.readHeader,
		legal: func() error { return b.checkSize("put", key, payload) },
		next:  func(reading, admission.Bid) (state, []byte, error) { return written, payload, nil },
	})
}

// Claim starts a tenure. Call it once after a grant, before the first read of the object: until then the mark does not
// refuse the predecessor. Repeating it is safe.
//
// Claim writes the object's own payload with the context's token. If the object does not exist, Claim creates one with
// a mark and no payload, so that the first write is fenced too; [Bucket.Get] then returns [ErrNoObject]. If the mark
// already equals the token, and the object follows the token's lock, Claim writes nothing. On success the object
// accepts no older token, not even in a write that is still under way. The errors are those of [Bucket.Put]; after
// [ErrUnknown] call Claim again.
func (b *Bucket) Claim(ctx context.Context, key string) error {
	return b.claim(ctx, "claim", key, admission.Bid{})
}

// Move makes the object follow the lock that the context names, and claims the object as [Bucket.Claim] does. Call it
// when the writers have switched to another lock, before they write. On success the object accepts no token of the
// former lock, not even in a write that is still under way. Repeating it is safe.
//
// The errors are those of Claim without the [*fence.OtherLockError]. If the token is stale, acquire the lock again, or
// raise the era if the lock is in another cluster. The error also matches [fence.ErrInvalidToken] if the context
// carries no name of a lock, or several.
func (b *Bucket) Move(ctx context.Context, key string) error {
	return b.claim(ctx, "move", key, admission.Bid{Moves: true})
}

// ClaimRead starts the tenure of a reader. Call it once after a grant, before the first of several reads: until then
// the marks do not refuse a writer that held the lock before, and it could write between them. Repeating it is safe. To
// read one version of one object no claim is needed: [Bucket.Get] returns the mark of that version.
//
// Like [Bucket.Claim] it writes the object's own payload, with the context's token of a read lock as the mark of
// readers, and creates a missing object without a payload. If the mark of readers is not lower, and the object already
// follows the token's lock or the token has none, ClaimRead writes nothing. On success the object accepts no older
// token of a writer, not even in a write that is still under way. The errors are those of [Bucket.Put]; the token is
// stale if the mark of writers is newer. After [ErrUnknown] call ClaimRead again.
func (b *Bucket) ClaimRead(ctx context.Context, key string) error {
	return b.claim(ctx, "claim to read", key, admission.Bid{Read: true})
}

// CheckRead reports whether the context's token of a read lock may still read. Call it after a read, before its result
// is used: if it accepts the token, no newer writer had written before. It reads the start of the object. If the mark
// of readers is lower, because the holder has not claimed, or the object follows no lock and the token has one, it then
// does what [Bucket.ClaimRead] does. The errors are those of ClaimRead.
func (b *Bucket) CheckRead(ctx context.Context, key string) error {
	const verb = "check to read"
	by, err := b.admit(ctx, verb, key, admission.Bid{Read: true})
	if err != nil {
		return err
	}
	r, err := b.look(ctx, verb, key, by)
	if err != nil || r.After(by) == r.Marks {
		return b.tell(ctx, key, by, err)
	}
	return b.claim(ctx, verb, key, by)
}

// claim writes an object with its own payload and the bid's marks, unless it already has them.
func (b *Bucket) claim(ctx context.Context, verb, key string, by admission.Bid) error {
	return b.change(ctx, change{
		verb: verb, key: key, by: by, read: b.read,
		next: func(old reading, by admission.Bid) (state, []byte, error) {
			switch {
			case old.After(by) == old.Marks:
				return 0, nil, errNothingToDo
			case old.etag == "":
				return claimed, nil, nil
			default:
				return old.state, old.payload, nil
			}
		},
	})
}

// Update reads the payload, calls fn and writes the result. If another write comes in between, it reads again and calls
// fn again, so fn may run several times; only its last result is written. fn gets nil if the object does not exist or
// was claimed and never written. It may keep and change the slice.
//
// If fn returns an error, nothing is written and Update's error wraps it. Otherwise success and errors are those of
// [Bucket.Put]. After [ErrUnknown] the last result of fn may have been written, and fn was not called again.
func (b *Bucket) Update(ctx context.Context, key string, fn func(old []byte) ([]byte, error)) error {
	return b.change(ctx, change{
		verb: "update", key: key, read: b.read,
		legal: func() error {
			if fn == nil {
				return fmt.Errorf("s3fence: update %q: fn is nil, want a function", b.resource(key))
			}
			return nil
		},
		next: func(old reading, _ admission.Bid) (state, []byte, error) {
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

// errNothingToDo makes a change end without a write.
var errNothingToDo = errors.New("nothing to do")

// change is a fenced write.
type change struct {
	verb, key string
	by        admission.Bid
	legal     func() error // checks the verb's own arguments before anything is sent; may be nil
	read      func(ctx context.Context, key string) (reading, error)
	next      func(old reading, by admission.Bid) (state, []byte, error) // returns what replaces old
}

// change admits c, carries it out and reports its outcome to the hooks.
func (b *Bucket) change(ctx context.Context, c change) (err error) {
	if c.by, err = b.admit(ctx, c.verb, c.key, c.by); err == nil && c.legal != nil {
		err = c.legal()
	}
	if err != nil {
		return err
	}
	failed, err := b.rewrite(ctx, c)
	if failed {
		_ = b.tell(ctx, c.key, c.by, nil) // the token was accepted
		return err
	}
	return b.tell(ctx, c.key, c.by, err)
}

// rewrite replaces the object as c says. The flag failed reports that c.next returned an error, for which the token had
// been accepted. The write is safe for these reasons:
//
// A write is conditional on the ETag of the version whose marks and lock were compared. The id makes the bytes of every
// write, and so its ETag, unique: as long as the ETag is the same, nothing has been written.
//
// All attempts on one base, which is one ETag, carry the same bytes and replace the base, so at most one is done and it
// does not matter which. rewrite takes a new base and new bytes only if every attempt on the old base was answered "not
// done", or the new base has replaced the old one itself. An attempt that arrives later fails, since its base is gone.
func (b *Bucket) rewrite(ctx context.Context, c change) (failed bool, err error) {
	base, err := c.read(ctx, c.key)
	if err != nil {
		return false, b.explain(c.verb, c.key, err)
	}
	var (
		h       header
		body    []byte // what is to replace base, with the header h; nil if it is not made yet
		unknown bool   // an attempt to write it may have been done, or may still be
	)
	fail := func(err error) (bool, error) {
		if unknown {
			err = fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		return false, b.explain(c.verb, c.key, err)
	}
	for attempt := 1; ; attempt++ {
		if body == nil {
			if err := base.Refuse(b.resource(c.key), c.by); err != nil {
				return false, err
			}
			st, payload, err := c.next(base, c.by)
			if errors.Is(err, errNothingToDo) {
				return false, nil
			}
			if err != nil {
				return true, b.explain(c.verb, c.key, err)
			}
			h = header{Marks: base.After(c.by), id: newID(), prev: base.id, state: st}
			body = seal(h, payload)
		}
		if err := ctx.Err(); err != nil { // otherwise a request that was never sent would count as unclear
			return fail(err)
		}
		_, err := b.putIf(ctx, c.key, base.etag, body)
		outcome := classify(err)
		switch outcome {
		case done:
			return false, nil
		case refused:
			return fail(err)
		case unclear:
			unknown = true
		case conflict, unsent:
		}
		// The object is read after the last attempt too, since that may have been done.
		now, readErr := base, b.wait(ctx, attempt)
		if readErr == nil {
			now, readErr = c.read(ctx, c.key)
		}
		switch {
		case readErr != nil:
			// A conflict alone proves nothing: it may be the answer to a copy that a proxy made of this request.
			unknown = unknown || outcome == conflict
			return fail(fmt.Errorf("reading it back: %w, after: %w", readErr, err))
		case now.id == h.id || now.prev == h.id:
			// This write was done: its answer was lost, or this answer was to a copy of the request that a proxy made.
			return false, nil
		}
		// Compare the id too: a store that reads ETag and content in two steps can return an old ETag with a new
		// content.
		gone := now.id != base.id || now.etag != base.etag
		// If one write has followed base, and it is not this one, no attempt at this one is done. If two or more have, the
		// first may be this one, even after a 412: that may be the answer to a proxy's copy. Readers that are granted
		// together write in such close succession.
		notDone := now.prev == base.id
		unknown = unknown && !notDone
		refusal := now.Refuse(b.resource(c.key), c.by)
		switch {
		case refusal != nil:
			unknown = !notDone
			return fail(refusal)
		case gone && unknown:
			return fail(fmt.Errorf("other writes have followed: %w", err))
		case attempt >= b.opts.Attempts && unknown:
			return fail(err)
		case attempt >= b.opts.Attempts:
			return fail(fmt.Errorf("%w: %d of %d: %w", ErrContended, attempt, b.opts.Attempts, err))
		case gone:
			base, body = now, nil
		}
	}
}

// maxGrowth bounds the longest wait, in multiples of Options.Backoff.
const maxGrowth = 100

// wait waits a random time after an attempt.
func (b *Bucket) wait(ctx context.Context, attempt int) error {
	longest := b.opts.Backoff * time.Duration(min(maxGrowth, 1<<min(attempt-1, 7)))
	timer := time.NewTimer(rand.N(longest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
