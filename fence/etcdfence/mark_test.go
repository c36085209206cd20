package etcdfence_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// A malformed mark accepts no token. FuzzParseMarks in package admission has more spellings.
func TestMarks_malformed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m := newMarks(t, c)
		for _, value := range []string{
			"", "41", "41 7", strings.Repeat("\n", 1<<10), "41 0 ", "41 0 " + strings.Repeat("l", fence.MaxLock+1),
		} {
			srv.Put("fence/r", value)
			rev := srv.Rev()
			for name, v := range verbs(m) {
				for _, token := range []fence.Token{1, math.MaxInt64} {
					err := v.Call(v.Context(t.Context(), token, "accounts"), "r")
					require.ErrorIs(t, err, etcdfence.ErrMalformedMark, "%s: %q", name, value)
					require.ErrorContains(t, err, `at "fence/r": value `)
					require.Less(t, len(err.Error()), 250)
					require.NotContains(t, err.Error(), "\n")
				}
			}
			require.Equal(t, rev, srv.Rev())
		}
	})
}

// No write through a KV reaches a mark.
func TestMarks_KV_sparesTheMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		kv := markKV(t, c, "r")
		require.NoError(t, newMarks(t, c).Claim(with(t, 41), "r"))
		calls := len(srv.Calls(fakeetcd.Any))
		ctx := with(t, 41)
		for _, op := range []clientv3.Op{
			clientv3.OpPut("fence/r", "1 0"),
			clientv3.OpPut("fence/other", ""),
			clientv3.OpDelete("fence/r"),
			clientv3.OpDelete("fence/", clientv3.WithPrefix()),
			clientv3.OpDelete("fen", clientv3.WithPrefix()),
			clientv3.OpDelete("", clientv3.WithPrefix()),
			clientv3.OpDelete("a", clientv3.WithFromKey()),
			clientv3.OpDelete("a", clientv3.WithRange("fence/0")),
			clientv3.OpDelete("fence/z", clientv3.WithRange("z")),
		} {
			_, err := kv.Do(ctx, op)
			require.ErrorContains(t, err, "covers marks")
			_, err = kv.Txn(ctx).Else(clientv3.OpTxn(nil, nil, []clientv3.Op{op})).Commit()
			require.ErrorContains(t, err, `want keys without the prefix "fence/"`)
			_, err = kv.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{op}, nil)).Commit()
			require.ErrorContains(t, err, "covers marks")
		}
		require.Len(t, srv.Calls(fakeetcd.Any), calls, "nothing was sent")
		for _, op := range []clientv3.Op{
			clientv3.OpDelete("a", clientv3.WithRange("fence/")),
			clientv3.OpDelete("fence0", clientv3.WithFromKey()),
			clientv3.OpDelete("fenc0", clientv3.WithPrefix()),
			clientv3.OpPut("fence", ""),
			clientv3.OpGet("fence/r"),
		} {
			_, err := kv.Do(ctx, op)
			require.NoError(t, err)
		}
		read, err := kv.Txn(ctx).Then(clientv3.OpGet("fence/", clientv3.WithPrefix())).Commit()
		require.NoError(t, err)
		require.EqualValues(t, 1, read.Responses[0].GetResponseRange().Count, "marks may be read")
		require.Equal(t, "41 0", contents(srv, "")["fence/r"])
	})
}

// While the lock is held, or for the holder of the newest token, the answers to random requests are as without the gate,
// and so is what they leave. If a write raises the mark and changes nothing else, its revision is another one. Refusals
// by the server are among the answers.
func TestKV_answersAsWithout(t *testing.T) {
	const steps = 300
	for _, gate := range []string{"a lock", "a mark", "a mark that each write raises"} {
		t.Run(gate, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				without, plain := start(t)
				under, gated := start(t)
				_, h := contend(t, plain.Client, "locks/n")
				contend(t, gated.Client, "locks/n") // of the same lease and revision
				without.Put("fence/r", "41 0")
				under.Put("fence/r", "41 0")
				kv, token, raises := markKV(t, gated, "r"), fence.Token(41), false
				switch gate {
				case "a lock":
					kv = newKV(t, gated, h)
				case "a mark that each write raises":
					token, raises = 42, true
				}
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				r, ops := rand.New(rand.NewPCG(seed, 1)), requests(without.Leases()[0].ID)

				refused, changes := 0, 0
				for range steps {
					op, before := ops[r.IntN(len(ops))], without.Rev()
					want, wantErr := do(t.Context(), plain, op)
					got, err := do(with(t, token), kv, op)
					require.Equal(t, wantErr, err)
					if err != nil {
						refused++
					}
					changed := without.Rev() > before
					if changed {
						changes++
					}
					if changed || !raises {
						require.Equal(t, want, got)
						require.Equal(t, without.Rev(), under.Rev())
					}
					if raises && under.Rev() > before {
						require.Equal(t, fmt.Sprintf("%d 0", token), contents(under, "fence/")["fence/r"])
						token++
					}
					for without.Rev() < under.Rev() { // the mark alone
						without.Put("fence/r", "")
					}
				}
				require.Equal(t, fmt.Sprint(without.Keys("d/")), fmt.Sprint(under.Keys("d/")))
				require.Positive(t, refused)
				require.Less(t, refused, steps/2, "the server must accept most calls, or the test compares little")
				require.Greater(t, changes, steps/10)
			})
		})
	}
}
