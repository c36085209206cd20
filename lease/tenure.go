package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/candidacy"
	"github.com/leasefence/leasefence/internal/retry"
)

func init() {
	candidacy.Of = func(s any) candidacy.Session { return inside{s.(*Session)} }
}

// inside is a session for package election.
type inside struct{ s *Session }

func (i inside) Enter() bool             { return i.s.enterScope() }
func (i inside) Leave()                  { i.s.leaveScope() }
func (i inside) Patience() time.Duration { return 3 * attemptBound(i.s.opts.TTL) }
func (i inside) Logger() *slog.Logger    { return i.s.opts.Logger }

func (i inside) Campaign(ctx context.Context, name, value string, priority int) (candidacy.Tenure, error) {
	opts := LockOptions{Owner: value}
	if value == "" {
		opts.Owner = i.s.opts.Owner
	}
	l, err := i.s.obtain(ctx, name, opts, way{
		join:  func(*Lock) {}, // each candidate stands in etcd's queue by itself
		enter: func(l *Lock, ctx context.Context) (*Lock, error) { return l.stand(ctx, priority) },
	})
	if err != nil {
		return nil, err
	}
	return &tenure{Lock: l, mod: l.entry.Rev}, nil
}

// tenure is a held lock for package election.
type tenure struct {
	*Lock

	mod int64 // the revision of the last write to the key that we know of
}

func (t *tenure) Lease() (left, overdue time.Duration) {
	if t.Err() == nil {
		left = t.g.remaining()
	}
	return left, -t.g.untilRenewal()
}

// Proclaim counts from the key's last modification, so that a request which is late cannot undo a later one.
func (t *tenure) Proclaim(ctx context.Context, value string) error {
	if err := t.Err(); err != nil {
		return err
	}
	ctx, cancel := t.boundByHandle(ctx)
	defer cancel()
	return retry.Do(ctx, t.g.s.client, t.g.queue.Attempt, func(ctx context.Context) error {
		for {
			rev, found, err := t.g.queue.Write(ctx, t.entry.Entry, t.mod, value)
			switch {
			case err != nil:
				return err
			case rev != 0:
				t.mod = rev
				return nil
			case found == nil || found.CreateRevision != t.entry.Rev:
				t.lose(t.whyDeleted(ctx))
				return t.Err() // which may be our own end, that came first
			case clientv3.LeaseID(found.Lease) != t.entry.Lease:
				t.lose(&LostError{Reason: KeyOverwritten, LeaseID: t.g.id, Key: t.entry.Key})
				return t.Err()
			case string(found.Value) == value: // by an attempt whose answer was lost
				t.mod = found.ModRevision
				return nil
			}
			t.mod = found.ModRevision // written on the same lease: asked to step back, or by another handle of ours
		}
	})
}

func (t *tenure) Promote(ctx context.Context, value string) error {
	if err := t.Err(); err != nil {
		return err
	}
	ctx, cancel := t.boundByHandle(ctx)
	defer cancel()
	_, err := t.promote(ctx, value)
	return err
}

func (t *tenure) Resign(ctx context.Context) error { return t.unlock(ctx, t.release) }

func (t *tenure) ResignTo(ctx context.Context, value string) error {
	var missed error
	err := t.unlock(ctx, func(ctx context.Context) (deleted bool, err error) {
		deleted, missed, err = t.releaseTo(ctx, value)
		return deleted, err
	})
	if missed != nil {
		missed = fmt.Errorf("resigned, but not to %q: %w", clip(value), missed)
	}
	return errors.Join(missed, err)
}
