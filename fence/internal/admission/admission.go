// Package admission has what every store checks before it sends anything, and the rule by which a resource accepts
// tokens.
package admission

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
)

const maxName = 1024 // bytes of each part of a mark's key

// Token returns the token that ctx carries, a reader's if reads is set. The error matches [fence.ErrInvalidToken] if
// ctx carries none of that kind, or one of an era above maxEra; see [fence.Token.CheckEra].
func Token(ctx context.Context, reads bool, maxEra uint16) (fence.Token, error) {
	kind, want := "a writer's", "a lock, or one of fence.NewContext"
	if reads {
		kind, want = "a reader's", "a read lock, or one of fence.NewReadContext"
	}
	t, has := fence.Token(0), "none"
	if write, ok := fence.FromContext(ctx); ok {
		t, has = write, "a writer's"
	} else if read, ok := fence.ReadFromContext(ctx); ok {
		t, has = fence.Token(read), "a reader's"
	}
	if has != kind {
		return 0, fmt.Errorf("%w: the context carries %s, want the context of %s with a token of 1 to 9223372036854775807, "+
			"low 48 bits not 0", fence.ErrInvalidToken, has, want)
	}
	return t, t.CheckEra(maxEra)
}

// Lock returns the name of the lock that the token of ctx belongs to, or "" if it came without one. The error matches
// [fence.ErrInvalidToken] if no resource can remember the name.
func Lock(ctx context.Context) (string, error) {
	lock, ok := fence.LockFromContext(ctx)
	if !ok {
		return "", nil
	}
	return lock, fence.CheckLock(lock)
}

// CheckName checks a part of a mark's key: it has 1 to 1,024 bytes of UTF-8, and neither NUL nor a character of illegal.
// The error adds words to "without NUL", such as " and braces".
func CheckName(field, name, illegal, words string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty, want 1 to %d bytes", field, maxName)
	case len(name) > maxName:
		return fmt.Errorf("%s has %d bytes, want 1 to %d", field, len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsAny(name, "\x00"+illegal):
		return fmt.Errorf("%s is %s, want UTF-8 without NUL%s", field, clip.Quote(name), words)
	}
	return nil
}
