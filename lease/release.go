package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// ReleaseMode is how [Release] frees a lock.
type ReleaseMode int

const (
	// ReleaseAsked asks the holder to release: its context ends with the cause [ErrAskedToRelease], and the lock is
	// free when the holder unlocks it, in Do and Run when the function has returned. Nothing is taken from the holder.
	// It learns of the request as it would learn of a deletion of its key: within milliseconds, or within a third of
	// the TTL, or a second if that is longer, for the 257th and further locks of a session. A holder that is cut off
	// learns of it when it reconnects.
	ReleaseAsked ReleaseMode = iota
	// ReleaseWait waits until the holder has released, or until its lease has ended in etcd because nobody renews it.
	// It asks nobody, and deletes nothing while the lease lives; if etcd has kept the key without its lease, it deletes
	// the key.
	ReleaseWait
	// ReleaseNow deletes the holder's key, and nothing else: its lease stays, with all other locks on it. The next
	// waiter gets the lock at once. The holder learns of it as with ReleaseAsked, but a holder that is cut off may run
	// until its deadline, at the same time as the next holder: only the fence keeps them apart then.
	ReleaseNow
)

var releaseModes = []string{ReleaseAsked: "asked", ReleaseWait: "wait", ReleaseNow: "now"}

func (m ReleaseMode) String() string { return nameOf("ReleaseMode", int(m), releaseModes) }

// ReleaseOptions say how [Release] frees a lock, and from which holder.
type ReleaseOptions struct {
	Mode ReleaseMode // default: ReleaseAsked
	// Revision selects the holder, see [Contender]. 0: the holder at the time of the call, if there is only one.
	Revision int64
}

// Release frees the lock called name from its present holder: a lock, a reader, a permit, one name of a set, a node of
// a tree, or the leader of an election, which then steps down. The name is the full one, as for [Inspect].
//
// Release chooses the holder once, when it is called. Nobody else is asked or loses anything, whatever happens
// meanwhile: each request compares the create revision of that holder's key. So Release may be repeated. Waiters keep
// their places, and the next of them gets the lock.
//
// With ReleaseAsked, Release returns when the request stands in the holder's key, behind the text for people; with
// ReleaseNow when the key is gone; with ReleaseWait when the hold has ended, or ctx ends. A set or a tree that is
// asked, or loses one key, ends as a whole. Holders of etcd's own packages cannot be asked. An acquisition that is
// first in the queue but does not know it yet fails with ErrAskedToRelease.
//
// The error matches [ErrNotHeld] if nobody holds the lock, or not with the given revision. Without a revision it is an
// error if several hold the lock. Failures that may pass are retried until ctx ends; the error then wraps ctx's cause.
// The request may have been carried out then, and also if etcd refuses an attempt, such as for a missing permission: the
// answer to an earlier attempt may have been lost.
//
// Release needs read permission on the name's keys and, except with ReleaseWait, write permission. ReleaseWait needs that
// too if the key stands though a member does not know its lease: only a write shows that the lease has ended. It puts the
// key, unchanged, and if etcd refuses that because there is no such lease, it deletes the key.
func Release(ctx context.Context, client *clientv3.Client, name string, opts ReleaseOptions) error {
	if err := checkInspected(client, name); err != nil {
		return err
	}
	switch {
	case opts.Mode < ReleaseAsked || opts.Mode > ReleaseNow:
		return fmt.Errorf("lease: ReleaseOptions.Mode is %d, want ReleaseAsked (0), ReleaseWait (1) or ReleaseNow (2)", int(opts.Mode))
	case opts.Revision < 0:
		return fmt.Errorf("lease: ReleaseOptions.Revision is %d, want a holder's, or 0", opts.Revision)
	}
	if err := release(ctx, etcd.Of(client), name, opts); err != nil {
		return fmt.Errorf("lease: release %q: %w", name, err)
	}
	return nil
}

func release(ctx context.Context, conn *etcd.Conn, name string, opts ReleaseOptions) error {
	q, err := standing(ctx, conn, name)
	if err != nil {
		return err
	}
	holder, err := q.holder(opts.Revision)
	if err != nil {
		return err
	}
	switch opts.Mode {
	case ReleaseWait:
		return awaitEnd(ctx, conn, holder)
	case ReleaseNow:
		return conn.Do(ctx, inspectAttempt, holder.delete)
	}
	if form, _ := queue.FormOf([]byte(holder.Key)); form.Bare {
		return errors.New("the holder is of etcd's own packages and cannot be asked")
	}
	return conn.Do(ctx, inspectAttempt, func(a *etcd.Attempt) error {
		_, err := queue.Ask(a, holder.Key, holder.Revision) // if it reports false, the holder has released meanwhile
		return err
	})
}

// holder returns the holder with a revision, or the only holder if rev is 0.
func (q *Queue) holder(rev int64) (Contender, error) {
	meant := func(c Contender) bool { return c.Revision == rev }
	switch i := slices.IndexFunc(q.Holders, meant); {
	case len(q.Holders) == 0:
		return Contender{}, ErrNotHeld
	case rev == 0 && len(q.Holders) > 1:
		return Contender{}, fmt.Errorf("%d hold it: name one by ReleaseOptions.Revision, such as %d", len(q.Holders), q.Holders[0].Revision)
	case rev == 0:
		return q.Holders[0], nil
	case i >= 0:
		return q.Holders[i], nil
	case slices.ContainsFunc(q.Waiters, meant):
		return Contender{}, fmt.Errorf("%w with revision %d: that one waits", ErrNotHeld, rev)
	}
	return Contender{}, fmt.Errorf("%w with revision %d, but with %d", ErrNotHeld, rev, q.Holders[0].Revision)
}

// stands compares true while the contender's key exists.
func (c Contender) stands() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(c.Key), "=", c.Revision)
}

// delete deletes the key if it is still the contender's. It is one attempt, and repeating it is safe.
func (c Contender) delete(a *etcd.Attempt) error {
	_, err := a.Txn([]clientv3.Cmp{c.stands()}, []clientv3.Op{clientv3.OpDelete(c.Key)}, nil)
	return err
}

// lookEvery is the pause between the looks of ReleaseWait. etcd checks for expired leases as often.
const lookEvery = 500 * time.Millisecond

// awaitEnd waits until the hold of c has ended.
func awaitEnd(ctx context.Context, conn *etcd.Conn, c Contender) error {
	for pause := time.NewTimer(0); ; pause.Reset(lookEvery) {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		_, known, err := timeLeft(ctx, conn, c.Lease)
		if err != nil {
			return err
		}
		over := false
		err = conn.Do(ctx, inspectAttempt, func(a *etcd.Attempt) error {
			resp, err := a.Get(c.Key)
			if err != nil {
				return err
			}
			over = len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != c.Revision || !queue.Contends(queue.Below(resp.Kvs[0].Key), resp.Kvs[0])
			if over || known {
				return nil
			}
			// A member that lags may not know the lease. Only a write is certain, since etcd refuses to attach a key to
			// a lease that does not exist.
			_, err = a.Txn([]clientv3.Cmp{c.stands(), clientv3.Compare(clientv3.LeaseValue(c.Key), "=", c.Lease)},
				[]clientv3.Op{clientv3.OpPut(c.Key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(c.Lease))}, nil)
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return c.delete(a)
			}
			return err
		})
		if over || err != nil {
			return err
		}
	}
}
