package etcdfence_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
)

// boundaries returns tokens around which an order of strings, floats or shorter integers would be wrong.
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

// Etcd's order of the values is the order of the tokens.
func TestFormat_keepsTheOrder(t *testing.T) {
	tokens := boundaries()
	values := make([]string, len(tokens))
	for i, tok := range tokens {
		values[i] = etcdfence.FormatMarks(tok, 0, "")
		back, _, _, ok := etcdfence.ParseMarks(values[i])
		require.True(t, ok)
		require.Equal(t, tok, back)
	}
	require.True(t, slices.IsSorted(values))
	require.Equal(t, "00000000000000000054", etcdfence.FormatMarks(54, 0, ""))
	require.Equal(t, "09223372036854775807", etcdfence.FormatMarks(math.MaxInt64, 0, ""))
}

// FuzzParseMarks checks that marks and name have exactly one spelling, that a read mark that is not above the write
// mark has none, and that no name is taken for a mark.
func FuzzParseMarks(f *testing.F) {
	for _, s := range []string{
		"", "0", "54", "09223372036854775807", "09223372036854775808", "99999999999999999999",
		"0000000000000000041", "000000000000000000041", "+0000000000000000041", "00000281474976710656",
		"0000000000000000004 ", " 0000000000000000041", "0000000000000000004a", "0x000000000000000029", "0000000000000000004\n",
		"000000000000000004\xd9\xa1",
		"00000000000000000054", "00000000000000000041 00000000000000000054", "00000000000000000000 00000000000000000054",
		"00000000000000000054 00000000000000000054", "00000000000000000054 00000000000000000041", "00000000000000000000",
		"00000000000000000041  00000000000000000054", "00000000000000000041 00000000000000000054 ", "00000000000000000041 ",
		"00000000000000000041 54", "0 00000000000000000054", " 00000000000000000054", "00000000000000000000 00000281474976710656",
		"00000000000000000041\t00000000000000000054", "00000281474976710656 09223372036854775807",
		"00000000000000000054 @accounts", "00000000000000000041 00000000000000000054 @accounts", "00000000000000000054 @",
		"00000000000000000054 accounts", "00000000000000000054@accounts", "00000000000000000054  @accounts", " @accounts",
		"00000000000000000000 @accounts", "00000000000000000054 @a @b 00000000000000000060", "00000000000000000054 @a\x00",
		"00000000000000000054 @\xff", "00000000000000000054 @" + strings.Repeat("l", fence.MaxLock),
		"00000000000000000054 @" + strings.Repeat("l", fence.MaxLock+1), "00000000000000000054 @a 00000000000000000060",
	} {
		f.Add(s, int64(len(s)), int64(54), s)
	}
	for _, lock := range []string{"", "accounts", " ", "@", " @", "60", "00000000000000000060", "@00000000000000000060", "a b", "a\n"} {
		f.Add("", int64(41), int64(54), lock)
		f.Add("", int64(41), int64(0), lock)
	}
	f.Fuzz(func(t *testing.T, s string, n, more int64, lock string) {
		write, read, name, ok := etcdfence.ParseMarks(s)
		if ok {
			require.Equal(t, s, etcdfence.FormatMarks(write, read, name))
			require.True(t, write.Valid() || write == 0 && read != 0)
			require.True(t, read == 0 || read.Valid() && fence.Token(read) > write)
			require.True(t, name == "" || fence.CheckLock(name) == nil)
		}
		write, read = fence.Token(n), fence.ReadToken(more)
		gotWrite, gotRead, gotLock, ok := etcdfence.ParseMarks(etcdfence.FormatMarks(write, read, lock))
		valid := (write.Valid() || write == 0) && read.Valid() && fence.Token(read) > write || write.Valid() && read == 0
		require.Equal(t, valid && (lock == "" || fence.CheckLock(lock) == nil), ok)
		if ok {
			require.Equal(t, write, gotWrite)
			require.Equal(t, read, gotRead)
			require.Equal(t, lock, gotLock)
		}
	})
}
