package s3fence

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
)

// claimant is a token, whether it is a reader's, and its lock.
type claimant struct {
	token fence.Token
	reads bool
	lock  string // "" if it came without a name
	moves bool   // the object follows its lock from now on
}

// admit checks a caller's input and returns the token of a writer.
func (b *Bucket) admit(ctx context.Context, verb, key string) (claimant, error) {
	if err := checkKey(key); err != nil {
		return claimant{}, err
	}
	token, err := admission.Token(ctx, b.opts.MaxEra)
	return b.named(ctx, verb, key, claimant{token: token}, err)
}

// admitReader is admit for a reader.
func (b *Bucket) admitReader(ctx context.Context, verb, key string) (claimant, error) {
	if err := checkKey(key); err != nil {
		return claimant{}, err
	}
	token, err := admission.ReadToken(ctx, b.opts.MaxEra)
	return b.named(ctx, verb, key, claimant{token: fence.Token(token), reads: true}, err)
}

// named returns the claimant with the lock that ctx names, unless there is an error already.
func (b *Bucket) named(ctx context.Context, verb, key string, by claimant, err error) (claimant, error) {
	if err == nil {
		by.lock, err = admission.Lock(ctx)
	}
	if err != nil {
		return claimant{}, fmt.Errorf("s3fence: %s %q: %w", verb, b.resource(key), err)
	}
	return by, nil
}

// refuse returns an error if what was read follows another lock or has a newer mark. Without a name a token is stale first: that is
// certain.
func (b *Bucket) refuse(key string, by claimant, r reading) error {
	other := r.lock != "" && by.lock != r.lock && !by.moves
	switch {
	case other && by.lock != "":
	case by.token < r.token:
		return &fence.StaleError{Resource: b.resource(key), Token: by.token, Highest: r.token, Read: by.reads}
	case by.token < r.read && !by.reads:
		return &fence.StaleError{Resource: b.resource(key), Token: by.token, Highest: r.read, ByReader: true}
	case !other || b.opts.AllowUnnamed:
		return nil
	}
	return &fence.OtherLockError{Resource: b.resource(key), Token: by.token, Read: by.reads, Lock: by.lock, Follows: r.lock}
}

// tell tells the hooks how a verb has ended, and returns its error.
func (b *Bucket) tell(ctx context.Context, key string, by claimant, err error) error {
	b.opts.Hooks.Tell(ctx, fence.Access{Resource: b.resource(key), Token: by.token, Read: by.reads, Lock: by.lock}, err)
	return err
}

// mark returns a header with the marks, and their lock, of what replaces old, which does not refuse the claimant.
func (c claimant) mark(old reading) header {
	h := header{token: old.token, read: old.read, lock: old.lock}
	switch {
	case !c.reads:
		h.token, h.read = c.token, 0
	case c.token > old.token:
		h.read = max(old.read, c.token)
	}
	if h.lock == "" || c.moves {
		h.lock = c.lock
	}
	return h
}

// marked reports whether old has these marks.
func (c claimant) marked(old reading) bool {
	h := c.mark(old)
	return h.token == old.token && h.read == old.read && h.lock == old.lock
}
