package etcdfence

import "github.com/leasefence/leasefence/fence"

// For tests of the mark's form.
var (
	Format = format
	Parse  = parse
)

// FormatMarks and ParseMarks are for tests of the form of both marks.
func FormatMarks(write fence.Token, read fence.ReadToken, lock string) string {
	return marks{write, read, lock}.String()
}

func ParseMarks(value string) (write fence.Token, read fence.ReadToken, lock string, ok bool) {
	m, ok := parseMarks(value)
	return m.write, m.read, m.lock, ok
}
