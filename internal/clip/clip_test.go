package clip_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/clip"
)

func TestTo_keepsWholeCharactersUpToTheBound(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"abcd", "abcd"},
		{"\xff", "\xff"},
		{"abcde", "abcd…"},
		{"abcä", "abc…"},
		{strings.Repeat("ä", 1<<20), "ää…"},
	} {
		require.Equal(t, c.want, clip.To(c.text, 4))
	}
}

func TestQuote_bounds(t *testing.T) {
	require.Equal(t, `"a\n\"b"`, clip.Quote("a\n\"b"))
	require.Equal(t, `"`+strings.Repeat("x", 24)+`"`, clip.Quote(strings.Repeat("x", 24)))
	require.Equal(t, `"`+strings.Repeat("x", 24)+`"…`, clip.Quote(strings.Repeat("x", 25)))
}
