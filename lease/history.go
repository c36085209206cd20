package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/etcd"
)

// ErrRestored means that etcd's revisions went back, because it was restored from a snapshot or another cluster has
// taken its place: tokens of the present era would be lower than earlier ones. errors.As finds a [RestoredError]. Raise
// [Options].Era; retrying does not help.
var ErrRestored = errors.New("lease: etcd's revisions went back")

// RestoredError reports a revision that went back. It matches [ErrRestored], and [fence.ErrStale] if it explains a
// refusal.
type RestoredError struct {
	Era      uint16 // the session's
	Highest  int64  // the highest revision that was known before
	Revision int64  // the cluster's, read after that
	Err      error  // the refusal that it explains, if any
}

func (e *RestoredError) Error() string {
	text := fmt.Sprintf("%v: to %d, and %d was seen before; raise Options.Era, which is %d", ErrRestored, e.Revision, e.Highest, e.Era)
	if e.Err == nil {
		return text
	}
	return fmt.Sprintf("%s: %v", text, e.Err)
}

// Is reports whether target is [ErrRestored].
func (e *RestoredError) Is(target error) bool { return target == ErrRestored }

// Unwrap returns the refusal, if any.
func (e *RestoredError) Unwrap() error { return e.Err }

// saw takes the revision of a linearizable answer: to a write, or to a read by quorum. Before is the highest revision
// that was known when its request was sent. A lower answer proves that revisions went back, and ends the session: every
// handle, and every later acquisition. Answers that are not linearizable prove nothing, since a member that lags
// reports an old revision, and answers to requests that cross come in any order. But they too raise the highest known
// revision, because the cluster has committed it.
func (s *Session) saw(before, rev int64) error {
	s.revisions.Raise(rev)
	if rev >= before || rev == 0 {
		return nil
	}
	s.mu.Lock()
	first := s.restored == nil
	if first {
		s.restored = &RestoredError{Era: s.opts.Era, Highest: before, Revision: rev}
	}
	restored, g := s.restored, s.grant
	s.mu.Unlock()
	if first {
		s.log.Error("etcd's revisions went back: raise the era", "era", s.opts.Era, "highest", before, "revision", rev)
	}
	if g != nil { // nil while NewSession runs
		g.lose(&LostError{Reason: ReasonRevisionWentBack, LeaseID: g.id, Err: restored})
	}
	return restored
}

// suspect takes the revision in the answer to a renewal, which is whatever the answering member had seen by then. If
// that is lower than the highest known revision, suspect asks the cluster.
func (g *grant) suspect(rev int64) {
	if rev == 0 || g.s.revisions.Raise(rev) {
		return
	}
	g.once(&g.looking, func(ctx context.Context) {
		key, ever := g.anyKey()
		if !ever { // no token was issued; the next acquisition finds out
			return
		}
		before := g.s.revisions.Highest()
		present, err := g.revision(ctx, key)
		if err == nil {
			err = g.s.saw(before, present)
		}
		if err != nil && ctx.Err() == nil {
			g.s.log.Warn("a renewal was answered with an old revision", "revision", rev, "err", err)
		}
	})
}

// revision reads the cluster's present revision through a key that the session may read.
func (g *grant) revision(ctx context.Context, key string) (rev int64, err error) {
	err = g.do(ctx, func(a *etcd.Attempt) error {
		resp, err := a.Get(key, clientv3.WithCountOnly()) // linearizable
		if err == nil {
			rev = resp.Header.Revision
		}
		return err
	})
	return rev, err
}

// Explain reports whether a resource refused this hold's token because etcd's revisions went back. Err is the error
// that the resource, or its adapter, returned.
//
// If err carries a [*fence.StaleError] for this token, and the mark is a token of the same era that the cluster cannot
// have issued yet, the result is a [*RestoredError] that wraps err. It matches [ErrRestored] and [fence.ErrStale], and
// means that the era must be raised. In all other cases the result is err itself: the lock was lost, and a new
// acquisition gets a token above the mark. If the cluster was restored and its revisions have passed the mark since,
// the result is err itself too.
//
// Explain reads etcd once, by quorum, and changes nothing. If that read fails or ctx ends before, the result still
// matches what err matches, and its text says that the reason is unknown. Explain works on a handle that has ended.
func (l *Lock) Explain(ctx context.Context, err error) error {
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || stale.Token != l.token || stale.Read != l.shared || !stale.Highest.Valid() || stale.Highest.Era() != l.token.Era() {
		return err
	}
	// The mark's token was issued before this read. So within one history its revision is at most the one read here.
	rev, failed := l.g.revision(ctx, l.entry.Key)
	switch {
	case failed != nil:
		return fmt.Errorf("%w (whether etcd was restored is not known: %s)", err, failed.Error())
	case stale.Highest.Revision() <= rev:
		return err
	}
	return &RestoredError{Era: l.token.Era(), Highest: stale.Highest.Revision(), Revision: rev, Err: err}
}

// reclaim deletes keys that are attached to the lease although they were released. A restore brings back every key of
// the snapshot, and as long as the lease is renewed, such a key blocks its queue and belongs to nobody. So does a key
// whose request arrived after the reaper had given it up.
//
// If a restore visibly takes revisions back, the session ends, and the lease with it. If the revisions were raised, or
// have caught up, nothing shows the restore for certain. But no cluster serves while it is restored, so reclaim runs
// after a stream of renewals broke. It is one read, and usually no more.
func (g *grant) reclaim() {
	if _, ever := g.anyKey(); !ever {
		return
	}
	g.once(&g.reclaiming, func(ctx context.Context) {
		g.keys.record(true)
		defer g.keys.record(false)
		var attached [][]byte
		_, err := g.while(ctx, func(a *etcd.Attempt) error {
			resp, err := timeToLive(a, g.s.conn.Client, g.id, clientv3.WithAttachedKeys())
			if err == nil {
				attached = resp.Keys
			}
			return err
		})
		if err != nil && ctx.Err() == nil && g.handles.Err() == nil {
			g.s.log.Warn("released keys that may be there again could not be read", "err", err)
		}
		for _, key := range attached {
			if e, back := g.takeBack(string(key)); back && g.reaper.add(e, true) {
				g.s.log.Warn("a released key is there again: etcd was restored, or a late request arrived", "below", e.Prefix)
			}
		}
	})
}

// once runs f in the background unless it is already running.
func (g *grant) once(running *atomic.Bool, f func(context.Context)) {
	if running.Swap(true) {
		return
	}
	g.s.spawn(func(ctx context.Context) {
		defer running.Store(false)
		f(ctx)
	})
}
