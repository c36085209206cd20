package s3fence

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
)

// claimant is a token and its lock.
type claimant struct {
	token fence.Token
	reads bool   // the token is a reader's
	lock  string // "" if the token came without a name
	moves bool   // the object is to follow this lock
}

// admit checks the key and returns what a writer's context carries.
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

// refuse returns an error if the object that was read follows another lock or has a newer mark. A token without a name
// that is lower than a mark is reported as stale, which is certain, and not as another lock's, which is not.
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

// tell reports the outcome of a verb to the hooks, and returns its error.
func (b *Bucket) tell(ctx context.Context, key string, by claimant, err error) error {
	b.opts.Hooks.Tell(ctx, fence.Access{Resource: b.resource(key), Token: by.token, Read: by.reads, Lock: by.lock}, err)
	return err
}

// mark returns a header with the marks and the lock that replace those of old. The claimant was not refused by old.
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

// marked reports whether old already has the marks and the lock that c would leave.
func (c claimant) marked(old reading) bool {
	h := c.mark(old)
	return h.token == old.token && h.read == old.read && h.lock == old.lock
}
