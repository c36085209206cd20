package lease

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/etcd"
)

// ErrRestored says that etcd's revisions went back, as they do when it is restored from a snapshot, or when another
// cluster has taken its place: tokens of the present era would be lower than earlier ones. errors.As finds a
// [RestoredError]. Raise [Options].Era; no retry helps.
var ErrRestored = errors.New("lease: etcd's revisions went back")

// RestoredError is a revision that went back. It matches [ErrRestored], and [fence.ErrStale] where it explains a
// refusal.
type RestoredError struct {
	Era      uint16 // the session's
	Highest  int64  // the highest revision that was known before
	Revision int64  // the cluster's, read after that
	Err      error  // the refusal that it explains, nil if there was none
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

// Unwrap returns the refusal.
func (e *RestoredError) Unwrap() error { return e.Err }

// An answer shows that revisions went back if it is linearizable (a write's, or a read's by quorum) and lower than what
// was known before its request was sent; any member's word raises that, since it tells of what the cluster has committed.
// Others prove nothing: a member that lags tells an old revision, and answers to requests that cross come in any order.

// saw takes the revision of a linearizable answer to a request that was sent when before was the highest. If revisions
// went back the session ends: every handle, and every acquisition from then on.
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
	if g != nil { // not while the session is being made
		g.lose(&LostError{Reason: ReasonRevisionWentBack, LeaseID: g.id, Err: restored})
	}
	return restored
}

// suspect takes the revision in the answer to a renewal, which is whatever the member that was asked had seen
// by then. If that is less than what was known, the cluster is asked.
func (g *grant) suspect(rev int64) {
	if rev == 0 || g.s.revisions.Raise(rev) {
		return
	}
	g.once(&g.looking, func(ctx context.Context) {
		key, ever := g.anyKey()
		if !ever { // nothing is at stake, and the next acquisition tells
			return
		}
		before := g.s.revisions.Highest()
		present, err := g.revision(ctx, key)
		if err == nil {
			err = g.s.saw(before, present)
		}
		if err != nil && ctx.Err() == nil {
			g.log.Warn("a renewal was answered with an old revision", "revision", rev, "err", err)
		}
	})
}

// revision reads the cluster's present revision, on a key that the session may read.
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

// Explain tells whether a resource refused this hold's token because etcd's revisions went back. Err is what the
// resource, or its adapter, returned.
//
// If err carries a [*fence.StaleError] for this token, and the mark is a token of the same era that the cluster
// cannot have given out yet, the result is a [*RestoredError] that wraps err: it matches [ErrRestored] and
// [fence.ErrStale], and means that the era must be raised. In all other cases it is err itself: the lock was lost, and a
// new acquisition has a token that is higher than the mark. That is so too where the cluster was restored and its
// revisions have passed the mark since.
//
// It reads etcd once, by quorum, and changes nothing. If ctx ends before etcd has answered, the result still matches
// what err matches, and says in words that the reason is not known. It works on a handle that has ended, and is safe for
// concurrent use.
func (l *Lock) Explain(ctx context.Context, err error) error {
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || stale.Token != l.token || stale.Read != l.shared || !stale.Highest.Valid() || stale.Highest.Era() != l.token.Era() {
		return err
	}
	// The mark was raised before this is read: in one history, its token was given out before that, and its revision is no
	// higher than what is read now.
	rev, failed := l.g.revision(ctx, l.entry.Key)
	switch {
	case failed != nil:
		return fmt.Errorf("%w (whether etcd was restored is not known: %s)", err, failed.Error())
	case stale.Highest.Revision() <= rev:
		return err
	}
	return &RestoredError{Era: l.token.Era(), Highest: stale.Highest.Revision(), Revision: rev, Err: err}
}
