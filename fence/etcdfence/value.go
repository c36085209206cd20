package etcdfence

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

// marks are the two marks of a resource (0 for none) and the name of the lock that it follows ("" for none).
//
// A read mark that is not above the write mark refuses nobody in addition, so it is not kept. An accepted writer is not
// below the read mark, so its token replaces both marks.
//
// All are in one value and not in several keys, so a write compares one value. A version of this package that does not
// know readers or names finds the value malformed and refuses every write; it would not look at a second key.
type marks struct {
	write fence.Token
	read  fence.ReadToken
	lock  string
}

// raised returns the marks after a bid that they accept.
func (m marks) raised(b bid) marks {
	switch {
	case !b.read:
		m.write, m.read = b.token, 0
	case b.token > m.write:
		m.read = max(m.read, fence.ReadToken(b.token))
	}
	if b.lock != "" { // differs from the mark's only if it is the first name or a Move
		m.lock = b.lock
	}
	return m
}

// beforeName cannot begin a read mark. The name comes last, since it may contain everything that the marks do.
const beforeName = " @"

// String returns the value of the key: the write mark, then a space and the read mark if there is one, then beforeName
// and the lock's name if there is one.
func (m marks) String() string {
	value := format(m.write)
	if m.read != 0 {
		value += " " + format(fence.Token(m.read))
	}
	if m.lock != "" {
		value += beforeName + m.lock
	}
	return value
}

// parseMarks reads the form that String writes and no other.
func parseMarks(value string) (marks, bool) {
	value, lock, named := strings.Cut(value, beforeName)
	first, second, readers := strings.Cut(value, " ")
	write, ok := parse(first)
	m := marks{write: write, lock: lock}
	if readers {
		read, valid := parse(second)
		m.read = fence.ReadToken(read)
		ok = valid && (ok || first == format(0)) && write < read
	}
	return m, ok && (!named || fence.CheckLock(lock) == nil)
}

// digits is the length of a mark. Leading zeros make the order of bytes, as in etcdctl, the order of numbers.
const digits = 20

func format(t fence.Token) string { return fmt.Sprintf("%0*d", digits, int64(t)) }

// parse reads the form that format writes and no other.
func parse(value string) (fence.Token, bool) {
	if len(value) != digits || strings.Trim(value, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(value, 10, 64)
	t := fence.Token(n)
	return t, err == nil && t.Valid()
}
