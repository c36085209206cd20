package redisfence_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/fence/redisfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// A malformed mark accepts no token, however new. FuzzMarks_mark has more spellings.
func TestMarks_malformedMark(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	key := f.MarkKey("orders")
	for name, v := range verbs(f) {
		require.NoError(t, c.Set(t.Context(), key, "054 0", 0).Err())
		err := call(t, v, math.MaxInt64, "orders")
		require.ErrorIs(t, err, redisfence.ErrMalformedMark, name)
		require.EqualError(t, err, `redisfence: malformed mark at "fence:{orders}": "054 0", `+
			"want the token of a writer and that of a reader, 0 if it is not higher, and then perhaps the name of a lock")
		require.Equal(t, "054 0", get(t, c, key))

		require.NoError(t, c.Del(t.Context(), key).Err())
		require.NoError(t, c.RPush(t.Context(), key, "54").Err())
		err = call(t, v, math.MaxInt64, "orders")
		require.ErrorIs(t, err, redisfence.ErrMalformedMark, name)
		require.ErrorContains(t, err, "WRONGTYPE", name)
		require.Empty(t, get(t, c, "data"), name)
	}
}

// edges are tokens next to those where a comparison is easily wrong: each power of ten, where lengths differ, 2^53, where
// doubles begin to round, and the largest token; and pairs that differ in one digit.
func edges() (pairs [][2]int64) {
	at := []int64{1 << 53, 1 << 62, 1<<48 + 1, math.MaxInt64 - 1}
	for p := int64(1); p < math.MaxInt64/10; p *= 10 {
		at = append(at, 10*p)
		const ones = 1_111_111_111_111_111_111
		pairs = append(pairs, [2]int64{ones, ones - p}, [2]int64{ones - p, ones})
	}
	for _, n := range at {
		for _, mark := range []int64{n - 1, n, n + 1} {
			for _, token := range []int64{n - 1, n, n + 1} {
				pairs = append(pairs, [2]int64{mark, token})
			}
		}
	}
	return pairs
}

// The script compares marks and locks by the rules of package fence, exactly for every token, and finds every other
// value malformed.
func FuzzMarks_mark(f *testing.F) {
	c := newClient(f)
	stored := newFence(f, c)
	for _, mark := range []string{
		"", "0", "1", "54", "54 ", "054 0", "54 00", "54 060", "54 0\x00", "-1 0", "+1 0", " 1 0", "1 0 ", "1 0\n", "1.0 0", "1e3 0", "١ 0",
		"9007199254740993 0", "9223372036854775807 0", "9223372036854775808 0", "9223372036854775809 0", "10000000000000000000 0",
		"281474976710656 0",     // era 1, revision 0
		"9223090561878065152 0", // era 32767, revision 0
		"41 54", "0 54", "54 54", "54 41", "0 0", "41  54", "41 54 ", "0 281474976710656", "1 9223372036854775807",
		"54 0 l", "54 0 other", "0 60 l", "54 60 other", "54 0 60", "54 0  l", "54 0 l ", "54 0 l 60", "54 0 a\nb", "0 0 l", "54 41 l",
		"54  l", "54 l", "54 0\nl", "41\t54", "54 0 \xff\x00", "54 0 " + strings.Repeat("l", 2305),
	} {
		for _, lock := range []string{"", "l", " l", "60"} {
			f.Add(mark, int64(54), lock)
		}
		f.Add(mark, int64(math.MaxInt64), "l")
		f.Add(mark, int64(1<<53+1), "")
	}
	for _, pair := range edges() {
		f.Add(fmt.Sprintf("%d 0", pair[0]), pair[1], "")
		f.Add(fmt.Sprintf("0 %d", pair[0]), pair[1], "")
	}

	f.Fuzz(func(t *testing.T, mark string, n int64, lock string) {
		token, key := fence.Token(n), stored.MarkKey("orders")
		m, ok := admission.ParseMarks(mark)
		for _, name := range []string{"Check", "Claim", "ClaimRead"} {
			v, after := verbs(stored)[name], mark
			ctx := v.Holder(t.Context(), token, lock)
			require.NoError(t, c.Set(t.Context(), key, mark, 0).Err())
			err := v.Call(ctx, "orders")
			switch {
			case !token.Valid() || lock != "" && fence.CheckLock(lock) != nil:
				require.ErrorIs(t, err, fence.ErrInvalidToken)
			case !ok:
				require.ErrorIs(t, err, redisfence.ErrMalformedMark)
				require.Less(t, len(err.Error()), 250)
				require.NotContains(t, err.Error(), "\n")
			default:
				next, want := fencetest.Marks(m).After(v, token, lock, false)
				fencetest.RequireRefusal(t, want, err, "orders", name)
				after = admission.Marks(next.Normal()).String()
			}
			require.Equal(t, after, get(t, c, key), name)
		}
	})
}
