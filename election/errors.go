package election

import (
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// The outcomes that callers tell apart with errors.Is, besides those of package lease: a leadership that was lost
// matches [lease.ErrLost] and carries a [lease.LostError], a closed session matches [lease.ErrClosed].
var (
	// ErrResigned says that the leadership was resigned or transferred before. It is also the cause of its context.
	ErrResigned = errors.New("election: resigned")
	// ErrNoCandidate says that nobody with the given value waits.
	ErrNoCandidate = errors.New("election: no such candidate")
	// ErrBlocked says that somebody waits before the candidate who does not let others pass: a candidate or a lock of
	// etcd's own packages, or a lock of package lease.
	ErrBlocked = errors.New("election: candidate cannot be preferred")
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

// translate gives errors from below the names that they have here.
func translate(err error) error {
	for _, t := range [...]struct{ below, here error }{
		{lease.ErrUnlocked, ErrResigned},
		{queue.ErrNoCandidate, ErrNoCandidate},
		{queue.ErrBlocked, ErrBlocked},
	} {
		if errors.Is(err, t.below) {
			return fmt.Errorf("%w: %w", t.here, err)
		}
	}
	return err
}
