package etcdfence

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

// marks are the two marks of a resource: 0 is none.
//
// A read mark that is not above the write mark refuses nobody whom the write mark does not, so it is not kept. A writer that is
// accepted is not below the read mark, and so leaves its own token alone.
//
// Both are in one value and not in two keys. So a write compares what it has always compared, and a version of this package that
// does not know readers finds the value malformed: it refuses every write, where it would not look at a second key.
type marks struct {
	write fence.Token
	read  fence.ReadToken
}

// raised returns the marks after a reader that they accept.
func (m marks) raised(t fence.ReadToken) marks {
	if fence.Token(t) > m.write {
		m.read = max(m.read, t)
	}
	return m
}

// String returns the value of the key: the write mark, and if there is a read mark, a space and that.
func (m marks) String() string {
	if m.read == 0 {
		return format(m.write)
	}
	return format(m.write) + " " + format(fence.Token(m.read))
}

// parseMarks reads the form that String writes and no other.
func parseMarks(value string) (marks, bool) {
	first, second, readers := strings.Cut(value, " ")
	write, ok := parse(first)
	if !readers {
		return marks{write: write}, ok
	}
	read, valid := parse(second)
	return marks{write, fence.ReadToken(read)}, valid && (ok || first == format(0)) && write < read
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
