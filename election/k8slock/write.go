package k8slock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/etcd"
)

// maxLeaseSeconds keeps the duration of a lease within a time.Duration, and is below the server's own limit.
const maxLeaseSeconds = 1_000_000_000

// Create writes the first record, on a new etcd lease of its LeaseDurationSeconds, and begins a tenure. If there is
// a record already, apierrors.IsAlreadyExists is true of the error.
//
// On every error there is no tenure. An acquisition whose outcome is unknown is undone: its lease is revoked in the
// background for up to [Options].Timeout, and expires if that fails too. While the elector leads, Create and Update
// begin no second tenure and return an error that matches [ErrLost]: the work of the lost tenure may still be running,
// and only an elector that steps down ends it.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.check(record, false); err != nil {
		return err
	}
	ctx, done, err := l.begin(ctx, l.bound(record))
	if err != nil {
		return fmt.Errorf("k8slock: create %q: %w", l.key, err)
	}
	defer done()
	return l.acquire(ctx, record, clientv3.Compare(clientv3.CreateRevision(l.key), "=", 0), l.alreadyExists())
}

// Update writes a record if the record that this Lock has seen last is still there. The two records decide what that
// means:
//
//   - HolderIdentity is this Lock's and the record is its present tenure's: a renewal, with the LeaseDurationSeconds of
//     the tenure. The etcd lease is renewed first, so that a record is never written for a tenure whose lease is gone.
//   - HolderIdentity is this Lock's and the record is not its tenure's: an acquisition, as in [Lock.Create].
//     The record moves to a new lease; another holder's lease is left to expire.
//   - HolderIdentity is empty: a release. The tenure ends before anything is sent. The record stays until its lease
//     expires, so that the count of transitions goes on. Update refuses to release a record that is not this Lock's,
//     since client-go would release its successor's.
//
// If the record has changed since, apierrors.IsConflict is true of the error; if no record was seen,
// apierrors.IsNotFound is. After another error the write may have happened or not; the next Get shows it.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	release := record.HolderIdentity == ""
	if err := l.check(record, release); err != nil {
		return err
	}
	ctx, done, err := l.begin(ctx, l.bound(record))
	if err != nil {
		return fmt.Errorf("k8slock: update %q: %w", l.key, err)
	}
	defer done()

	unchanged := clientv3.Compare(clientv3.ModRevision(l.key), "=", l.revision)
	t := l.present()
	switch {
	case release && !l.ours: // so the tenure, if there was one, is already over
		return fmt.Errorf("k8slock: release %q: the record is not this candidate's", l.key)
	case l.revision == 0:
		return l.notFound()
	case release:
		return l.release(ctx, record, t, unchanged)
	case l.ours && t.live():
		return l.renew(ctx, record, t, unchanged)
	default:
		return l.acquire(ctx, record, unchanged, l.conflict())
	}
}

// check refuses a record that a Lock cannot keep.
func (l *Lock) check(record resourcelock.LeaderElectionRecord, release bool) error {
	switch s := record.LeaseDurationSeconds; {
	case s < 1 || s > maxLeaseSeconds:
		return fmt.Errorf("k8slock: LeaseDurationSeconds is %d, want 1 to %d; an elector's LeaseDuration is cut to whole seconds",
			s, maxLeaseSeconds)
	case !release && record.HolderIdentity != l.identity:
		return fmt.Errorf("k8slock: HolderIdentity is %q, want the Lock's own, %q", record.HolderIdentity, l.identity)
	}
	return nil
}

// bound is the time limit of a call. It is a part of the time after its last success within which an elector stops; see
// the package's documentation.
func (l *Lock) bound(record resourcelock.LeaderElectionRecord) time.Duration {
	if record.HolderIdentity == "" { // the duration in a release is a nominal 1 s of client-go's
		return l.timeout
	}
	return min(l.timeout, time.Duration(record.LeaseDurationSeconds)*time.Second/4)
}

// acquire begins a tenure if the condition holds, and returns unmet if it does not. The revision of the write becomes
// the token.
func (l *Lock) acquire(ctx context.Context, record resourcelock.LeaderElectionRecord, condition clientv3.Cmp, unmet error) (err error) {
	l.mu.Lock()
	leading := l.leading
	l.mu.Unlock()
	if leading {
		return fmt.Errorf("%w: %q is not taken again before the elector has stopped", ErrLost, l.key)
	}

	began := clock.System.Now()
	var grant *clientv3.LeaseGrantResponse
	err = l.try(ctx, func(a *etcd.Attempt) (err error) {
		grant, err = etcd.Send(a, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
			return l.client.Grant(ctx, int64(record.LeaseDurationSeconds)) // a lease whose grant's answer is lost expires
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("k8slock: acquire %q: %w", l.key, err)
	}
	defer func() {
		if err != nil {
			go l.revoke(context.WithoutCancel(ctx), grant.ID) // in the background: this call's time may be over
		}
	}()
	rev, err := l.put(ctx, record, grant.ID, condition)
	switch {
	case err != nil:
		return fmt.Errorf("k8slock: acquire %q: %w", l.key, err)
	case rev == 0:
		return unmet
	}
	token, err := fence.NewToken(l.era, rev)
	if err != nil {
		return fmt.Errorf("k8slock: acquire %q: %w", l.key, err)
	}
	t := newTenure(etcd.Of(l.client), token, record.LeaseDurationSeconds, grant, began)
	if !t.live() {
		return fmt.Errorf("k8slock: acquire %q: the answer came too late: %w", l.key, context.Cause(t.ctx))
	}
	l.revision, l.ours, l.read = rev, true, true

	// The lease of the tenure before has no key any more. It is left to expire: a revocation would take time from this
	// call.
	l.lose("the record was replaced")
	l.install(t)
	return nil
}

// renew extends the present tenure.
func (l *Lock) renew(ctx context.Context, record resourcelock.LeaderElectionRecord, t *tenure, unchanged clientv3.Cmp) error {
	if record.LeaseDurationSeconds != t.seconds {
		return fmt.Errorf("k8slock: LeaseDurationSeconds is %d, want the tenure's, %d", record.LeaseDurationSeconds, t.seconds)
	}
	began := clock.System.Now()
	err := l.try(ctx, func(a *etcd.Attempt) error {
		_, err := etcd.Send(a, func(ctx context.Context) (struct{}, error) { return struct{}{}, t.renewals.send(ctx, l.bounded) })
		return err
	})
	var rev int64
	if err == nil {
		rev, err = l.put(ctx, record, t.lease, unchanged)
	}
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		l.lose("the lease expired or was revoked")
		return fmt.Errorf("k8slock: renew %q: %w", l.key, err)
	case err != nil:
		return fmt.Errorf("k8slock: renew %q: %w", l.key, err)
	case rev == 0:
		return l.conflict()
	}
	l.revision = rev
	if !t.extend(began) {
		return fmt.Errorf("k8slock: renew %q: the answer came too late: %w", l.key, context.Cause(t.ctx))
	}
	return nil
}

// release writes a record without a holder.
func (l *Lock) release(ctx context.Context, record resourcelock.LeaderElectionRecord, t *tenure, unchanged clientv3.Cmp) error {
	l.stop()
	rev, err := l.put(ctx, record, t.lease, unchanged)
	switch {
	case err != nil:
		return fmt.Errorf("k8slock: release %q: %w", l.key, err)
	case rev == 0:
		return l.conflict()
	}
	l.revision, l.ours = rev, false
	return nil
}

// writtenRecord is a record as it is stored.
type writtenRecord struct {
	resourcelock.LeaderElectionRecord
	// Write is random. It makes each write a change, also within one second, the resolution of the record's times, and
	// tells a call its own record.
	Write uint64 `json:"write"`
}

// put writes the record if the condition holds, and returns the revision of the write, or 0 if the condition does not
// hold. An attempt or a hedged copy whose answer was lost may have broken the condition: then this call's record is
// there, and its revision is returned. A record that an earlier call of the same tenure wrote does not count as this
// call's: others may have seen it before, and they count its duration from then.
func (l *Lock) put(
	ctx context.Context, record resourcelock.LeaderElectionRecord, lease clientv3.LeaseID, condition clientv3.Cmp,
) (rev int64, err error) {
	value, err := json.Marshal(writtenRecord{record, rand.Uint64()}) //nolint:gosec // it only has to be unique
	if err != nil {
		return 0, err
	}
	write := clientv3.OpPut(l.key, string(value), clientv3.WithLease(lease))
	err = l.try(ctx, func(a *etcd.Attempt) error {
		resp, err := a.Txn([]clientv3.Cmp{condition}, []clientv3.Op{write}, []clientv3.Op{clientv3.OpGet(l.key)})
		switch {
		case err != nil:
			return err
		case resp.Succeeded:
			rev = resp.Header.Revision
			return nil
		}
		for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
			if bytes.Equal(kv.Value, value) {
				rev = kv.ModRevision
			}
		}
		return nil
	})
	return rev, err
}

// try sends a request until it is answered, within the time of the call. It is hedged: after each quarter of that time
// without an answer a copy is sent to another endpoint. A quarter, since a call makes two requests, and a dead endpoint
// must leave time for the others. The first copy goes on, so that the answer of a slow server still counts.
func (l *Lock) try(ctx context.Context, request func(*etcd.Attempt) error) error {
	return etcd.Of(l.client).Do(ctx, l.bounded, func(a *etcd.Attempt) error { return request(a.Beside(l.bounded / 4)) })
}

// revoke undoes an acquisition that failed: a record that it may have written goes with its lease. If the revocation
// fails, the lease expires. It runs beside other calls, and uses none of the fields that a call owns.
func (l *Lock) revoke(ctx context.Context, lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	err := etcd.Of(l.client).Do(ctx, l.timeout, func(a *etcd.Attempt) error {
		_, err := etcd.Send(a.Beside(l.timeout/4), func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
			return l.client.Revoke(ctx, lease)
		})
		return err
	})
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.log.Warn("a lease that is not used any more is left to expire", "lock", l.name, "err", err)
	}
}
