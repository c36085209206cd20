package election

import (
	"errors"
	"fmt"
)

// The outcomes that callers tell apart with errors.Is, besides those of package lease: a leadership that was lost
// matches [lease.ErrLost] and carries a [lease.LostError], a closed session matches [lease.ErrClosed].
var (
	// ErrResigned says that the leadership has already been resigned or transferred. It is also the cause of its
	// context.
	ErrResigned = errors.New("election: resigned")
	// ErrHandedOver is the cause of a leadership's context that ended in favour of a candidate of a higher priority. It
	// matches ErrResigned too.
	ErrHandedOver = fmt.Errorf("%w: handed over to a candidate of a higher priority", ErrResigned)
	// ErrNoCandidate says that no waiting candidate has the given value.
	ErrNoCandidate = errors.New("election: no such candidate")
	// ErrBlocked says that a contender which cannot be passed waits before the candidate: a candidate or a lock of
	// etcd's own packages, or a lock of package lease.
	ErrBlocked = errors.New("election: a lock or a candidate of another library is ahead")
)
