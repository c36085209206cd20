package redisfence_test

import (
	"math"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// requireOrder checks that the script orders a token and a mark, a writer's or a reader's, as Go orders their numbers.
func requireOrder(t *testing.T, c *redis.Client, f *redisfence.Marks, mark, token fence.Token) {
	t.Helper()
	older := admission.Marks{Write: mark}
	both := older.After(admission.Bid{Token: token, Read: true}).String()
	for _, tt := range []struct {
		verb, before, after string // after: the mark if the token is accepted
		refused             fence.StaleError
	}{
		{"Check", older.String(), older.String(), fence.StaleError{}},
		{"Claim", older.String(), token.String() + " 0", fence.StaleError{}},
		{"Claim", "0 " + mark.String(), token.String() + " 0", fence.StaleError{ByReader: true}},
		{"ClaimRead", older.String(), both, fence.StaleError{Read: true}},
	} {
		require.NoError(t, c.Set(t.Context(), f.MarkKey("orders"), tt.before, 0).Err())
		v := verbs(f)[tt.verb]
		err := v.Call(v.Context(t.Context(), token), "orders")
		if token < mark {
			tt.after, tt.refused.Resource, tt.refused.Token, tt.refused.Highest = tt.before, "orders", token, mark
			require.Equal(t, &tt.refused, err)
		} else {
			require.NoError(t, err, "%s: mark %d, token %d", tt.verb, mark, token)
		}
		require.Equal(t, tt.after, get(t, c, f.MarkKey("orders")))
	}
}

// The edges are the neighbours of every power of ten, where lengths differ, of 2^53, where doubles begin to round, and
// of the largest token. Then tokens that differ in one digit.
func TestMarks_isExactAtTheEdges(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	edges := []int64{1 << 53, 1 << 62, 1<<48 + 1, math.MaxInt64 - 1}
	for p := int64(1); ; p *= 10 {
		edges = append(edges, p)
		if p > math.MaxInt64/10 {
			break
		}
	}
	pairs := 0
	for _, edge := range edges {
		for _, mark := range []int64{edge - 1, edge, edge + 1} {
			for _, token := range []int64{edge - 1, edge, edge + 1} {
				if fence.Token(mark).Valid() && fence.Token(token).Valid() {
					requireOrder(t, c, f, fence.Token(mark), fence.Token(token))
					pairs++
				}
			}
		}
	}
	require.Greater(t, pairs, 170)
	const ones = fence.Token(1_111_111_111_111_111_111)
	for p := fence.Token(1); p < ones; p *= 10 {
		requireOrder(t, c, f, ones, ones-p)
		requireOrder(t, c, f, ones-p, ones)
		if p > ones/10 {
			break
		}
	}
}

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

// The script compares marks and locks by the rules of package fence, and finds every other value malformed.
func FuzzMarks_mark(f *testing.F) {
	c := newClient(f)
	stored := newFence(f, c)
	for _, mark := range []string{
		"", "0", "1", "54", "54 ", "054 0", "54 00", "54 060", "54 0\x00", "-1 0", "+1 0", " 1 0", "1 0 ", "1 0\n", "1.0 0", "1e3 0", "١ 0",
		"9007199254740993 0", "9223372036854775807 0", "9223372036854775808 0", "10000000000000000000 0",
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
	f.Fuzz(func(t *testing.T, mark string, n int64, lock string) {
		token, ctx := fence.Token(n), as(t, fence.Token(n))
		if lock != "" {
			ctx = of(t, lock, token)
		}
		require.NoError(t, c.Set(t.Context(), stored.MarkKey("orders"), mark, 0).Err())
		err := stored.Claim(ctx, "orders")
		m, ok := admission.ParseMarks(mark)
		switch {
		case !token.Valid() || lock != "" && fence.CheckLock(lock) != nil:
			require.ErrorIs(t, err, fence.ErrInvalidToken)
		case !ok:
			require.ErrorIs(t, err, redisfence.ErrMalformedMark)
			require.Less(t, len(err.Error()), 250)
			require.NotContains(t, err.Error(), "\n")
		case lock != "" && m.Lock != "" && m.Lock != lock:
			require.Equal(t, &fence.OtherLockError{Resource: "orders", Token: token, Lock: lock, Follows: m.Lock}, err)
		case token < m.Write:
			require.Equal(t, &fence.StaleError{Resource: "orders", Token: token, Highest: m.Write}, err)
		case token < m.Read:
			require.Equal(t, &fence.StaleError{Resource: "orders", Token: token, Highest: m.Read, ByReader: true}, err)
		case lock == "" && m.Lock != "":
			require.Equal(t, &fence.OtherLockError{Resource: "orders", Token: token, Follows: m.Lock}, err)
		default:
			require.NoError(t, err)
			mark = admission.Marks{Write: token, Lock: lock}.String()
		}
		require.Equal(t, mark, get(t, c, stored.MarkKey("orders")))
	})
}
