package etcdfence_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
)

// boundaries are tokens around which an order of strings, of floats or of shorter integers would err.
func boundaries() []fence.Token {
	tokens := []fence.Token{1, math.MaxInt64}
	for n := int64(10); n < math.MaxInt64/10; n *= 10 {
		tokens = append(tokens, fence.Token(n-1), fence.Token(n), fence.Token(n+1))
	}
	for bits := range 63 {
		tokens = append(tokens, fence.Token(1<<bits-1), fence.Token(1<<bits), fence.Token(1<<bits+1))
	}
	tokens = slices.DeleteFunc(tokens, func(t fence.Token) bool { return !t.Valid() })
	slices.Sort(tokens)
	return slices.Compact(tokens)
}

// Every pair of them is told apart, at the server.
func TestMarks_exactOverTheWholeRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		tokens := boundaries()
		for range 50 {
			if tok := fence.Token(rand.Int64N(math.MaxInt64)); tok.Valid() {
				tokens = append(tokens, tok)
			}
		}
		kv := markKV(t, c, "r")
		for _, mark := range tokens {
			for _, tok := range []fence.Token{mark - 1, mark, mark + 1, tokens[rand.IntN(len(tokens))]} {
				if !tok.Valid() {
					continue
				}
				srv.Put("fence/r", etcdfence.Format(mark))
				rev := srv.Rev()
				_, err := kv.Put(with(t, tok), "d", tok.String())
				require.Equal(t, tok < mark, err != nil, "token %d, mark %d: %v", tok, mark, err)
				if tok < mark {
					requireStale(t, err, fence.StaleError{Resource: "r", Token: tok, Highest: mark})
					require.Equal(t, rev, srv.Rev())
					continue
				}
				require.Equal(t, map[string]string{"d": tok.String()}, contents(srv, "d"))
				require.Equal(t, tok, mustParse(t, srv, "fence/r"))
				require.Equal(t, rev+1, srv.Rev(), "mark and write are one revision")
			}
		}
	})
}

// The order of the marks as etcd sees them is that of the numbers.
func TestFormat_keepsTheOrder(t *testing.T) {
	tokens := boundaries()
	values := make([]string, len(tokens))
	for i, tok := range tokens {
		values[i] = etcdfence.Format(tok)
		back, ok := etcdfence.Parse(values[i])
		require.True(t, ok)
		require.Equal(t, tok, back)
	}
	require.True(t, slices.IsSorted(values))
	require.Equal(t, "00000000000000000054", etcdfence.Format(54))
	require.Equal(t, "09223372036854775807", etcdfence.Format(math.MaxInt64))
}

// FuzzParse checks that a mark has one spelling.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "0", "54", "00000000000000000054", "09223372036854775807", "09223372036854775808"} {
		f.Add(s, int64(len(s)))
	}
	f.Fuzz(func(t *testing.T, s string, n int64) {
		if tok, ok := etcdfence.Parse(s); ok {
			require.True(t, tok.Valid())
			require.Equal(t, s, etcdfence.Format(tok))
		}
		tok := fence.Token(n)
		got, ok := etcdfence.Parse(etcdfence.Format(tok))
		require.Equal(t, tok.Valid(), ok)
		if ok {
			require.Equal(t, tok, got)
			require.Equal(t, tok.String(), strings.TrimLeft(etcdfence.Format(tok), "0"))
		}
	})
}
