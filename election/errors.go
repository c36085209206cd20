package election

import (
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/lease"
)

// The outcomes that callers tell apart with errors.Is, besides those of package lease: a leadership that was lost
// matches [lease.ErrLost] and carries a [lease.LostError], a closed session matches [lease.ErrClosed].
var (
	// ErrResigned says that the leadership was resigned or transferred before. It is also the cause of its context.
	ErrResigned = errors.New("election: resigned")
	// ErrHandedOver is the cause of a leadership's context that has ended so that a candidate of a higher priority leads. It
	// matches ErrResigned too.
	ErrHandedOver = fmt.Errorf("%w: handed over to a candidate of a higher priority", ErrResigned)
	// ErrNoCandidate says that nobody with the given value waits.
	ErrNoCandidate = errors.New("election: no such candidate")
	// ErrBlocked says that a contender which cannot be passed waits before the candidate: a candidate or a lock of etcd's own
	// packages, or a lock of package lease.
	ErrBlocked = errors.New("election: a lock or a candidate of another library is ahead")
)

// loggable is err without what it quotes of candidates: their values and keys are not logged.
func loggable(err error) error {
	for _, missed := range [...]error{ErrNoCandidate, ErrBlocked} {
		if errors.Is(err, missed) {
			return missed
		}
	}
	return err
}

// translate has an error of lease say that the leadership was resigned, if it says that the lock was unlocked.
func translate(err error) error {
	if errors.Is(err, lease.ErrUnlocked) {
		return fmt.Errorf("%w: %w", ErrResigned, err)
	}
	return err
}
