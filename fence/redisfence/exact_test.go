package redisfence_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// requireOrder checks that the script orders a mark and a token as Go orders their numbers.
func requireOrder(t *testing.T, c *redis.Client, f *redisfence.Fence, mark, token fence.Token) {
	t.Helper()
	require.NoError(t, c.Set(t.Context(), f.MarkKey("orders"), mark.String(), 0).Err())
	check, claim := f.Check(as(t, token), "orders"), f.Claim(as(t, token), "orders")
	if token < mark {
		requireStale(t, check, "orders", token, mark)
		requireStale(t, claim, "orders", token, mark)
	} else {
		require.NoError(t, check, "mark %d, token %d", mark, token)
		require.NoError(t, claim, "mark %d, token %d", mark, token)
	}
	require.Equal(t, max(mark, token).String(), get(t, c, f.MarkKey("orders")))
}

// The neighbours of every power of ten, where lengths differ; of 2^53, where doubles begin to round; of the largest.
func TestFence_isExactAtTheEdges(t *testing.T) {
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
}

func TestFence_isExactAtRandom(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	n := 0
	for digits := 1; digits <= 19; digits++ {
		for range 60 {
			mark := ofLength(rnd, digits)
			requireOrder(t, c, f, mark, ofLength(rnd, digits))          // the same length
			requireOrder(t, c, f, mark, ofLength(rnd, 1+rnd.IntN(19)))  // any length
			requireOrder(t, c, f, mark, neighbour(rnd, mark, digits-1)) // the same but for one digit
			n += 3
		}
	}
	require.Equal(t, 19*60*3, n)
}

// ofLength returns a token with so many digits.
func ofLength(rnd *rand.Rand, digits int) fence.Token {
	low := int64(math.Pow10(digits - 1))
	span := uint64(9) * uint64(low)
	if digits == 19 {
		span = math.MaxInt64 - uint64(low) + 1
	}
	for {
		if t := fence.Token(low + int64(rnd.Uint64N(span))); t.Valid() {
			return t
		}
	}
}

// neighbour returns a token that differs from t in one of the digits after the first.
func neighbour(rnd *rand.Rand, t fence.Token, others int) fence.Token {
	for others > 0 {
		text := []byte(t.String())
		text[1+rnd.IntN(others)] = byte('0' + rnd.IntN(10))
		if n, err := fence.Parse(string(text)); err == nil {
			return n
		}
	}
	return t
}

// The control: a script that compares numbers accepts, above 2^53, a token that is older than the mark.
func TestFence_tonumberWouldAcceptAStaleToken(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	naive := redis.NewScript(`
		if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[1])) then return 'stale' end
		return 'ok'`)
	for _, tt := range []struct {
		mark, token fence.Token
		naive       string
	}{
		{1<<53 - 1, 1<<53 - 2, "stale"}, // still right
		{1<<53 + 1, 1 << 53, "ok"},      // one revision later, in era 32
		{math.MaxInt64, math.MaxInt64 - 500, "ok"},
	} {
		if !tt.token.Valid() {
			tt.mark, tt.token = tt.mark+4, tt.token+4 // revision 0 is none
		}
		require.NoError(t, c.Set(t.Context(), f.MarkKey("orders"), tt.mark.String(), 0).Err())
		got, err := naive.Run(t.Context(), c, []string{f.MarkKey("orders")}, tt.token.String()).Text()
		require.NoError(t, err)
		require.Equal(t, tt.naive, got, "mark %d, token %d", tt.mark, tt.token)
		requireStale(t, f.Set(as(t, tt.token), "orders", "data", 1), "orders", tt.token, tt.mark)
	}
	require.Empty(t, get(t, c, "data"))
}

// What something else has written into the mark accepts nobody, however new.
func TestFence_malformedMark(t *testing.T) {
	c := newClient(t)
	f := newFence(t, c)
	for _, mark := range []string{
		"", "0", "-1", "+1", "01", " 1", "1 ", "1\n", "1\x00", "1.0", "1e3", "0x10", "abc", "١", "nan",
		"281474976710656",     // era 1, revision 0
		"9223090561878065152", // era 32767, revision 0
		"9223372036854775808", "9999999999999999999", "10000000000000000000",
	} {
		for name, verb := range verbs(f) {
			t.Run(fmt.Sprintf("%q/%s", mark, name), func(t *testing.T) {
				require.NoError(t, c.Set(t.Context(), f.MarkKey("orders"), mark, 0).Err())
				err := verb(as(t, math.MaxInt64), "orders")
				require.ErrorIs(t, err, redisfence.ErrMalformedMark)
				require.EqualError(t, err,
					`redisfence: malformed mark at "fence:{orders}": `+strconv.Quote(mark)+`, want a token, decimal`)
				require.Equal(t, mark, get(t, c, f.MarkKey("orders")))
				require.Empty(t, get(t, c, "data"))
			})
		}
	}
	require.NoError(t, c.Del(t.Context(), f.MarkKey("orders")).Err())
	require.NoError(t, c.RPush(t.Context(), f.MarkKey("orders"), "54").Err())
	for name, verb := range verbs(f) {
		err := verb(as(t, math.MaxInt64), "orders")
		require.ErrorIs(t, err, redisfence.ErrMalformedMark, name)
		require.ErrorContains(t, err, "WRONGTYPE", name)
	}
}

// The script accepts as a mark what fence.Parse accepts as a token, and orders the two as Go does.
func FuzzFence_mark(f *testing.F) {
	c := newClient(f)
	guard := newFence(f, c)
	for _, mark := range []string{
		"", "0", "1", "54", "054", "54\x00", "-1", "9007199254740993", "281474976710656", "9223372036854775807",
		"9223372036854775808", "99999999999999999999", "\xff",
	} {
		f.Add(mark, int64(54))
		f.Add(mark, int64(math.MaxInt64))
		f.Add(mark, int64(1<<53+1))
	}
	f.Fuzz(func(t *testing.T, mark string, n int64) {
		token := fence.Token(n)
		if !token.Valid() {
			require.ErrorIs(t, guard.Claim(as(t, token), "orders"), fence.ErrInvalidToken)
			return
		}
		require.NoError(t, c.Set(t.Context(), guard.MarkKey("orders"), mark, 0).Err())
		err := guard.Claim(as(t, token), "orders")
		highest, bad := fence.Parse(mark)
		switch {
		case bad != nil:
			require.ErrorIs(t, err, redisfence.ErrMalformedMark)
			require.Less(t, len(err.Error()), 200)
			require.NotContains(t, err.Error(), "\n")
		case token < highest:
			requireStale(t, err, "orders", token, highest)
		default:
			require.NoError(t, err)
			mark = token.String()
		}
		require.Equal(t, mark, get(t, c, guard.MarkKey("orders")))
	})
}
