// Package clip bounds text that others wrote, before it is logged, kept or put into an error.
package clip

import (
	"strconv"
	"strings"
)

// To returns s if it has at most most bytes, and otherwise its first whole characters up to there, with "…" behind them.
func To(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Quote returns s in quotes, of a longer one its first 24 bytes with "…" behind them: as much of a value as an error has.
func Quote(s string) string {
	const most = 24
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
