// Package clip shortens text from outside before it is logged, kept or put into an error.
package clip

import (
	"strconv"
	"strings"
)

// To returns s if it has at most most bytes, otherwise its first whole characters within most bytes, followed by "…".
func To(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Quote returns s in quotes, for use in an error. Of more than 24 bytes it quotes the first 24, followed by "…".
func Quote(s string) string {
	const most = 24
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
