package lease

import (
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/internal/clip"
)

// The outcomes that callers distinguish with errors.Is.
var (
	// ErrLocked means that somebody else holds the lock or waits for it; errors.As finds a [LockedError].
	ErrLocked = errors.New("lease: locked")
	// ErrLost means that the lock was lost before it was unlocked; errors.As finds a [LostError].
	ErrLost = errors.New("lease: lost")
	// ErrUnlocked means that the lock was already unlocked. It is also the cause of an unlocked handle's context.
	ErrUnlocked = errors.New("lease: unlocked")
	// ErrClosed means that the session is closed.
	ErrClosed = errors.New("lease: session closed")
	// ErrAskedToRelease is the cause of a handle's context when somebody has asked its holder to release; see
	// [Release].
	ErrAskedToRelease = errors.New("lease: asked to release")
	// ErrNotHeld means that nobody holds the lock that [Release] is to free, or not the holder with the given revision.
	ErrNotHeld = errors.New("lease: not held")
	// ErrMaxHold is the cause of a handle's context that has reached the bound of its hold; see [WithMaxHold].
	ErrMaxHold = errors.New("lease: longest hold reached")
)

// LockedError is the error of [Session.TryLock] when somebody else is in the queue. It matches [ErrLocked].
//
// Key and Token are zero if the acquisition ahead belongs to the same session and has not entered etcd's queue yet.
type LockedError struct {
	Name  string
	Owner string      // the text for people in the holder's key, up to 4 KiB
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

// Reason says how a lock was lost.
type Reason int

const (
	_ Reason = iota
	// ReasonDeadlinePassed means that no renewal was acknowledged in time. The local timer alone decides that.
	ReasonDeadlinePassed
	// ReasonLeaseGone means that the server does not know the lease any more: it expired there or was revoked.
	ReasonLeaseGone
	// ReasonKeyDeleted means that somebody else deleted the lock's key.
	ReasonKeyDeleted
	// ReasonKeyOverwritten means that somebody else wrote to the lock's key and took it off its lease, which the key
	// would now outlive.
	ReasonKeyOverwritten
	// ReasonSessionClosed means that [Session.Close] was called. Such a loss also matches [ErrClosed].
	ReasonSessionClosed
	// ReasonRevisionWentBack means that etcd was restored from a snapshot, or that another cluster has taken its place.
	// Such a loss also matches [ErrRestored].
	ReasonRevisionWentBack
)

var reasons = []string{
	ReasonDeadlinePassed:   "no renewal was acknowledged before the deadline",
	ReasonLeaseGone:        "the lease has expired or was revoked",
	ReasonKeyDeleted:       "the key was deleted by somebody else",
	ReasonKeyOverwritten:   "the key was taken off its lease by somebody else",
	ReasonSessionClosed:    "the session was closed",
	ReasonRevisionWentBack: "etcd's revisions went back",
}

func (r Reason) String() string { return nameOf("Reason", int(r), reasons) }

// LostError is the cause of a lost handle's context, and the loss that [Lock.Unlock] and [Session.Do] report. It
// matches [ErrLost].
//
// Its text, which ends up in logs, has neither the lease's ID nor the key, which contains the ID.
type LostError struct {
	Reason  Reason
	LeaseID clientv3.LeaseID
	Key     string // the lock's key, if that was lost and not the lease
	// With ReasonDeadlinePassed, Err is the last failure to renew, or nil if no answer came at all. With
	// ReasonRevisionWentBack it is a [*RestoredError].
	Err error
}

func (e *LostError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("lease: lost: %s: %v", e.Reason, e.Err)
	}
	return fmt.Sprintf("lease: lost: %s", e.Reason)
}

// Is reports whether target is [ErrLost]; [ErrClosed] if the session was closed; [ErrRestored] if etcd's revisions went
// back.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || target == ErrClosed && e.Reason == ReasonSessionClosed ||
		target == ErrRestored && e.Reason == ReasonRevisionWentBack
}

// ReleaseCause is the cause of the release in an audit trail, see [audit.CauseOf]. The local deadline passes before the
// lease expires at the server, so a lease that is gone before that deadline was revoked.
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
	// maxKey bounds the part that is kept of a key that somebody else has written. This package's own keys are always
	// shorter.
	maxKey = 4 << 10
	// shown bounds the part of other people's text that errors and logs show.
	shown = 64
)
