package etcdfence

import "github.com/leasefence/leasefence/fence"

// FormatMarks and ParseMarks are for tests of the form of both marks.
func FormatMarks(write fence.Token, read fence.ReadToken, lock string) string {
	return marks{write, read, lock}.String()
}

func ParseMarks(value string) (write fence.Token, read fence.ReadToken, lock string, ok bool) {
	m, ok := parseMarks(value)
	return m.write, m.read, m.lock, ok
}
