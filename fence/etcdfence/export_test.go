package etcdfence

import "github.com/leasefence/leasefence/fence"

// FormatMarks and ParseMarks give tests the form of a mark's value.
func FormatMarks(write fence.Token, read fence.ReadToken, lock string) string {
	return marks{write, read, lock}.String()
}

func ParseMarks(value string) (write fence.Token, read fence.ReadToken, lock string, ok bool) {
	m, ok := parseMarks(value)
	return m.write, m.read, m.lock, ok
}
