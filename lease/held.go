package lease

import (
	"context"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// held has the methods of a [Lock] that the other kinds of locks share.
type held struct{ lock *Lock }

// grip makes the handle of another kind of lock, if the acquisition has succeeded.
func grip[H ~struct{ held }](l *Lock, err error) (*H, error) {
	if err != nil {
		return nil, err
	}
	return &H{held{l}}, nil
}

// Token returns the fencing token of this hold. It is fixed at the grant.
func (h *held) Token() fence.Token { return h.lock.Token() }

// Context is as [Lock.Context].
func (h *held) Context() context.Context { return h.lock.Context() }

// Err is as [Lock.Err].
func (h *held) Err() error { return h.lock.Err() }

// Deadline is as [Lock.Deadline].
func (h *held) Deadline() time.Time { return h.lock.Deadline() }

// Unlock is as [Lock.Unlock].
func (h *held) Unlock(ctx context.Context) error { return h.lock.Unlock(ctx) }

// Explain is as [Lock.Explain].
func (h *held) Explain(ctx context.Context, err error) error { return h.lock.Explain(ctx, err) }
