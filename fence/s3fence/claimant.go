package s3fence

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
)

// claimant is a token and whether it is a reader's.
type claimant struct {
	token fence.Token
	reads bool
}

// admit checks a caller's input and returns the token of a writer.
func (b *Bucket) admit(ctx context.Context, verb, key string) (claimant, error) {
	if err := checkKey(key); err != nil {
		return claimant{}, err
	}
	token, err := admission.Token(ctx, b.opts.MaxEra)
	if err != nil {
		return claimant{}, fmt.Errorf("s3fence: %s %q: %w", verb, b.resource(key), err)
	}
	return claimant{token: token}, nil
}

// admitReader is admit for a reader.
func (b *Bucket) admitReader(ctx context.Context, verb, key string) (claimant, error) {
	if err := checkKey(key); err != nil {
		return claimant{}, err
	}
	token, err := admission.ReadToken(ctx, b.opts.MaxEra)
	if err != nil {
		return claimant{}, fmt.Errorf("s3fence: %s %q: %w", verb, b.resource(key), err)
	}
	return claimant{fence.Token(token), true}, nil
}

// refuse returns an error if what was read has a newer mark.
func (b *Bucket) refuse(key string, by claimant, r reading) error {
	switch {
	case by.token < r.token:
		return &fence.StaleError{Resource: b.resource(key), Token: by.token, Highest: r.token, Read: by.reads}
	case by.token < r.read && !by.reads:
		return &fence.StaleError{Resource: b.resource(key), Token: by.token, Highest: r.read, ByReader: true}
	}
	return nil
}

// marks returns the write mark and the read mark of what replaces old, which does not refuse the claimant.
func (c claimant) marks(old reading) (write, read fence.Token) {
	switch {
	case !c.reads:
		return c.token, 0
	case c.token > old.token:
		return old.token, max(old.read, c.token)
	default:
		return old.token, old.read
	}
}

// marked reports whether old has these marks.
func (c claimant) marked(old reading) bool {
	write, read := c.marks(old)
	return write == old.token && read == old.read
}
