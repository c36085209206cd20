package lease

import (
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/internal/clip"
)

// The outcomes that callers tell apart with errors.Is.
var (
	// ErrLocked says that somebody else holds the lock or waits for it; errors.As finds a [LockedError].
	ErrLocked = errors.New("lease: locked")
	// ErrLost says that the lock was lost before it was unlocked; errors.As finds a [LostError].
	ErrLost = errors.New("lease: lost")
	// ErrUnlocked says that the lock had been unlocked before. It is also the cause of an unlocked handle's context.
	ErrUnlocked = errors.New("lease: unlocked")
	// ErrClosed says that the session is closed.
	ErrClosed = errors.New("lease: session closed")
	// ErrAskedToRelease is the cause of a handle's context when somebody has asked its holder to let go; see [Release].
	ErrAskedToRelease = errors.New("lease: asked to release")
	// ErrNotHeld says that nobody holds what [Release] is to release, or not the one that was meant.
	ErrNotHeld = errors.New("lease: not held")
	// ErrMaxHold is the cause of a handle's context after its longest hold; see [WithMaxHold].
	ErrMaxHold = errors.New("lease: longest hold reached")
)

// LockedError is what [Session.TryLock] returns when somebody else is in the queue. It matches [ErrLocked].
//
// Key and Token are zero if the one before is a caller of the same session that is about to enter etcd's queue.
type LockedError struct {
	Name  string
	Owner string      // the text the holder left for people: what is in its key, up to 4 KiB
	Key   string      // the holder's key in etcd, up to 4 KiB
	Token fence.Token // the holder's token, with this session's era
}

func (e *LockedError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("lease: lock %q is about to be taken by %q, of this session", e.Name, clip.To(e.Owner, shown))
	}
	return fmt.Sprintf("lease: lock %q is held by %q (key %q, token %s)", e.Name, clip.To(e.Owner, shown), clip.To(e.Key, 256), e.Token)
}

// Is reports whether target is [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Reason is how a lock was lost.
type Reason int

const (
	_ Reason = iota
	// ReasonDeadlinePassed says that no renewal was acknowledged in time. It is found by the local timer alone.
	ReasonDeadlinePassed
	// ReasonLeaseGone says that the server does not know the lease any more: it expired there or was revoked.
	ReasonLeaseGone
	// ReasonKeyDeleted says that somebody else deleted the lock's key.
	ReasonKeyDeleted
	// ReasonKeyOverwritten says that somebody else wrote to the lock's key and took it off its lease: it would outlive it.
	ReasonKeyOverwritten
	// ReasonSessionClosed says that [Session.Close] was called. Such a loss also matches [ErrClosed].
	ReasonSessionClosed
	// ReasonRevisionWentBack says that etcd was restored from a snapshot, or another cluster has taken its place. Such a loss
	// also matches [ErrRestored].
	ReasonRevisionWentBack
)

var reasons = [...]string{
	ReasonDeadlinePassed:   "no renewal was acknowledged before the deadline",
	ReasonLeaseGone:        "the lease has expired or was revoked",
	ReasonKeyDeleted:       "the key was deleted by somebody else",
	ReasonKeyOverwritten:   "the key was taken off its lease by somebody else",
	ReasonSessionClosed:    "the session was closed",
	ReasonRevisionWentBack: "etcd's revisions went back",
}

func (r Reason) String() string {
	if r <= 0 || int(r) >= len(reasons) {
		return fmt.Sprintf("Reason(%d)", int(r))
	}
	return reasons[r]
}

// LostError is the cause of a lost handle's context, and what [Lock.Unlock] and [Session.Do] report of it.
// It matches [ErrLost].
//
// Its text, which ends up in logs, has neither the lease's ID nor the key, of which the ID is a part.
type LostError struct {
	Reason  Reason
	LeaseID clientv3.LeaseID
	Key     string // of the lock, where the key and not the lease was lost
	// Err is, with ReasonDeadlinePassed, the last failure to renew, nil if there was no answer at all; with ReasonRevisionWentBack, a
	// [*RestoredError].
	Err error
}

func (e *LostError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("lease: lost: %s: %v", e.Reason, e.Err)
	}
	return fmt.Sprintf("lease: lost: %s", e.Reason)
}

// Is reports whether target is [ErrLost], [ErrClosed] where the session was closed, or [ErrRestored] where etcd's
// revisions went back.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || target == ErrClosed && e.Reason == ReasonSessionClosed ||
		target == ErrRestored && e.Reason == ReasonRevisionWentBack
}

// ReleaseCause is how an audit trail tells the loss, see [audit.CauseOf]. The local deadline comes before the server's:
// a lease that is gone while that had not passed was revoked.
func (e *LostError) ReleaseCause() audit.Cause {
	switch e.Reason {
	case ReasonDeadlinePassed:
		return audit.CauseExpired
	case ReasonSessionClosed:
		return audit.CauseExplicit
	default:
		return audit.CauseRevoked
	}
}

const (
	// maxKey is how much is kept of a key that somebody else has written. One of this package's is always shorter.
	maxKey = 4 << 10
	// shown is how much errors and logs have of what people wrote.
	shown = 64
)
