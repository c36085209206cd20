package fence

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrStale reports that a newer token has reached the resource. The caller has lost its lock, and the resource accepts
// nothing more with the same token. The error is a [*StaleError].
var ErrStale = errors.New("fence: stale token")

// StaleError is the refusal of a token that is older than a mark. It matches [ErrStale].
type StaleError struct {
	Resource string
	Token    Token // the refused token, of a reader if Read is set
	Highest  Token // the mark, or 0 if the store does not report it
	Read     bool  // Token is a [ReadToken]: a newer writer has reached the resource
	ByReader bool  // Highest is a [ReadToken]: a newer reader has reached the resource
}

// Error names the resource, the token and the mark.
func (e *StaleError) Error() string {
	text, highest := fmt.Sprintf("%v %d for %q", ErrStale, int64(e.Token), e.Resource), "highest seen"
	if e.Read {
		text = fmt.Sprintf("%v %d of a reader for %q", ErrStale, int64(e.Token), e.Resource)
	}
	if e.ByReader {
		highest = "highest seen of a reader"
	}
	if e.Highest == 0 {
		return text
	}
	return fmt.Sprintf("%s: %s is %d", text, highest, int64(e.Highest))
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// MaxLock is the longest name of a lock, in bytes. The locks of package lease have shorter names, also with their
// prefix.
const MaxLock = 2304

// ErrOtherLock reports that a token does not belong to the lock that the resource follows. Nothing was written, and the
// token may be the newest of its own lock. The error is an [*OtherLockError].
var ErrOtherLock = errors.New("fence: token of another lock")

// OtherLockError is the refusal of a token that belongs to another lock than the resource follows. It matches
// [ErrOtherLock].
type OtherLockError struct {
	Resource string
	Token    Token  // the refused token, of a reader if Read is set
	Read     bool   // Token is a [ReadToken]
	Lock     string // the lock of the token, "" if it came without a name
	Follows  string // the lock of the resource
}

// Error names the resource, the token and both locks.
func (e *OtherLockError) Error() string {
	of, reads := fmt.Sprintf("of lock %q", e.Lock), ""
	if e.Lock == "" {
		of = "without the name of a lock"
	}
	if e.Read {
		reads = " of a reader"
	}
	return fmt.Sprintf("%v: %d%s %s for %q, which follows lock %q", ErrOtherLock, int64(e.Token), reads, of, e.Resource, e.Follows)
}

// Is reports whether target is [ErrOtherLock].
func (e *OtherLockError) Is(target error) bool { return target == ErrOtherLock }

// CheckLock refuses the name of a lock that a resource cannot store: an empty name, a name longer than [MaxLock], and a
// name that is not UTF-8 or contains NUL. Implementations of stores call it. The error matches [ErrInvalidToken].
func CheckLock(lock string) error {
	switch {
	case lock == "" || len(lock) > MaxLock:
		return fmt.Errorf("%w: its lock's name has %d bytes, want 1 to %d", ErrInvalidToken, len(lock), MaxLock)
	case !utf8.ValidString(lock) || strings.ContainsRune(lock, 0):
		return fmt.Errorf("%w: its lock's name is %.64q, want UTF-8 without NUL", ErrInvalidToken, lock)
	}
	return nil
}
