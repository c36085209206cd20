package fence_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// A Guard decides by these rules: a token that is not valid is refused as such; a writer's below
// one of the resource's two marks is stale, and a reader's below the write mark; any other is accepted, and its mark is
// no lower from then on. Three bytes are one call.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{0, 0, 54, 1, 0, 53, 1, 0, 54, 2, 0, 55})
	f.Add([]byte{0, 0, 54, 0, 1, 41, 3, 0, 0, 4, 0, 41, 4, 2, 60})
	f.Add([]byte{2, 0, 54, 5, 0, 55, 1, 0, 54})
	f.Add([]byte{0, 0, 0, 1, 0, 250, 2, 0, 251, 4, 0, 252, 1, 0, 253})
	f.Add([]byte{0, 0, 54, 4, 0, 41, 1, 0, 53})
	f.Add([]byte{0, 0, 41, 6, 0, 54, 1, 0, 42, 7, 0, 53, 3, 0, 0, 0, 0, 53, 0, 0, 60, 7, 0, 54, 8, 0, 70, 2, 0, 60})
	f.Fuzz(decides)
}

// The same rules with many random calls.
func TestGuard_model(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		calls := make([]byte, 300)
		for i := range calls {
			calls[i] = byte(random.Uint32())
		}
		decides(t, calls)
	}
}

func decides(t *testing.T, calls []byte) {
	t.Helper()
	g, model, readers := &fence.Guard{MaxEra: 32767}, make(map[string]fence.Token), make(map[string]fence.ReadToken)
	for ; len(calls) >= 3; calls = calls[3:] {
		resource, tok := string(rune('a'+calls[1]%4)), tokenOf(calls[2])
		var err error
		ran, reads := false, false
		switch calls[0] % 9 {
		case 0:
			err = g.Claim(resource, tok)
		case 1:
			err = g.Check(resource, tok)
		case 2:
			err = g.Do(resource, tok, func() error { ran = true; return nil })
			require.Equal(t, err == nil, ran)
		case 3: // a restart
			marks, readMarks := g.Marks(), g.ReadMarks()
			g = &fence.Guard{MaxEra: 32767}
			require.NoError(t, g.Load(marks))
			require.NoError(t, g.LoadRead(readMarks))
			continue
		case 4:
			err = g.Load(map[string]fence.Token{resource: tok})
			if tok.Valid() {
				require.NoError(t, err)
				model[resource] = max(model[resource], tok)
				continue
			}
		case 5:
			failure := errors.New("disk full")
			if err = g.Do(resource, tok, func() error { ran = true; return failure }); ran {
				require.Equal(t, failure, err)
				err = nil // the token has been seen
			}
		case 6:
			reads, err = true, g.ClaimRead(resource, fence.ReadToken(tok))
		case 7:
			reads, err = true, g.CheckRead(resource, fence.ReadToken(tok))
		case 8:
			reads, err = true, g.LoadRead(map[string]fence.ReadToken{resource: fence.ReadToken(tok)})
			if tok.Valid() {
				require.NoError(t, err)
				readers[resource] = max(readers[resource], fence.ReadToken(tok))
				continue
			}
		}
		switch mark, readMark := model[resource], fence.Token(readers[resource]); {
		case !tok.Valid():
			require.ErrorIs(t, err, fence.ErrInvalidToken)
		case tok < mark:
			require.Equal(t, &fence.StaleError{Resource: resource, Token: tok, Highest: mark, Read: reads}, err)
		case reads:
			require.NoError(t, err)
			readers[resource] = max(readers[resource], fence.ReadToken(tok))
		case tok < readMark:
			require.Equal(t, &fence.StaleError{Resource: resource, Token: tok, Highest: readMark, ByReader: true}, err)
		default:
			require.NoError(t, err)
			model[resource] = tok
		}
		if marks, readMarks := g.Marks(), g.ReadMarks(); !maps.Equal(model, marks) || !maps.Equal(readers, readMarks) {
			require.Equal(t, model, marks)
			require.Equal(t, readers, readMarks)
		}
	}
}

// tokenOf returns one of a few tokens that are close together, or at the limits.
func tokenOf(b byte) fence.Token {
	const era = fence.Token(1) << 48
	edges := []fence.Token{0, -1, era, 1<<63 - 1, era - 1, era + 1, 2 * era, -1 << 63}
	if n := int(b) - (256 - len(edges)); n >= 0 {
		return edges[n]
	}
	return fence.Token(b)
}
