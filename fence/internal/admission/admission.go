// Package admission has what every store checks before it sends anything, and the rule by which a resource accepts
// tokens.
package admission

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
)

// Bid is the call of a verb: a token, and the lock that it belongs to.
type Bid struct {
	Token fence.Token
	Read  bool   // the token is a reader's, or Above is set
	Above bool   // the token is a writer's, and like a reader's here, at a node above the end of its path
	Lock  string // "" if the token came without a name
	Moves bool   // the resource is to follow this lock
	Lax   bool   // without a name the token is accepted whatever lock the resource follows
}

// From returns the bid with the token that ctx carries, a reader's if Read is set, and the name of its lock. The error
// matches [fence.ErrInvalidToken]. If Moves is set there must be a name.
func (b Bid) From(ctx context.Context, maxEra uint16) (_ Bid, err error) {
	if b.Token, err = Token(ctx, b.Read, maxEra); err == nil {
		b.Lock, err = Lock(ctx)
	}
	if err == nil && b.Moves && b.Lock == "" {
		err = fmt.Errorf("%w: the context carries no name of a lock, or several: want the context of one lock, or one of "+
			"fence.WithLock or fence.ForLock", fence.ErrInvalidToken)
	}
	return b, err
}

// Access returns what the hooks are told about the bid.
func (b Bid) Access(resource string) fence.Access {
	return fence.Access{Resource: resource, Token: b.Token, Read: b.Read, Lock: b.Lock}
}

// Marks are the marks of a resource, and the lock that it follows. All are in one value and not in several keys, so a
// store compares one value.
type Marks struct {
	Write fence.Token // 0 if no writer has come
	Read  fence.Token // 0 if it is not above Write: it would refuse nobody in addition
	Lock  string      // "" if no token has come with a name
}

// Refuse returns an error if the bid's token is of another lock or stale. Without a name, a token that is lower than a
// mark is reported as stale, which is certain, and not as another lock's, which is not.
func (m Marks) Refuse(resource string, b Bid) error {
	other := m.Lock != "" && b.Lock != m.Lock && !b.Moves
	switch {
	case other && b.Lock != "":
	case b.Token < m.Write:
		return &fence.StaleError{Resource: resource, Token: b.Token, Highest: m.Write, Read: b.Read && !b.Above}
	case !b.Read && b.Token < m.Read:
		return &fence.StaleError{Resource: resource, Token: b.Token, Highest: m.Read, ByReader: true}
	case !other || b.Lax:
		return nil
	}
	return &fence.OtherLockError{Resource: resource, Token: b.Token, Read: b.Read && !b.Above, Lock: b.Lock, Follows: m.Lock}
}

// After returns the marks after a bid that they accept. An accepted writer is not below the read mark, so its token
// replaces both.
func (m Marks) After(b Bid) Marks {
	switch {
	case !b.Read:
		m.Write, m.Read = b.Token, 0
	case b.Token > m.Write:
		m.Read = max(m.Read, b.Token)
	}
	if m.Lock == "" || b.Moves {
		m.Lock = b.Lock
	}
	return m
}

// String returns the write mark, a space and the read mark, and then, if the resource follows a lock, a space and its
// name: "54 60 accounts". The name comes last, since it may contain everything that the marks do.
func (m Marks) String() string {
	value := strconv.FormatInt(int64(m.Write), 10) + " " + strconv.FormatInt(int64(m.Read), 10)
	if m.Lock != "" {
		value += " " + m.Lock
	}
	return value
}

// ParseMarks reads the form that String writes and no other. It accepts a name that [fence.CheckLock] refuses for its
// characters: no token comes with that name, so the resource refuses them all.
func ParseMarks(value string) (m Marks, ok bool) {
	parts := append(strings.SplitN(value, " ", 3), "", "", "")
	write, _ := strconv.ParseInt(parts[0], 10, 64)
	read, _ := strconv.ParseInt(parts[1], 10, 64)
	m = Marks{Write: fence.Token(write), Read: fence.Token(read), Lock: parts[2]}
	ok = m.String() == value && (m.Write == 0 || m.Write.Valid()) && len(m.Lock) <= fence.MaxLock
	if m.Read == 0 {
		return m, ok && m.Write != 0
	}
	return m, ok && m.Read.Valid() && m.Read > m.Write
}

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
