package etcdfence_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// verbs returns all verbs, and ways to write a key.
func verbs(m *etcdfence.Marks) map[string]fencetest.Verb {
	all := fencetest.VerbsOf(m.Claim, m.Check, m.Move, m.ClaimRead, m.CheckRead)
	for name, write := range writes {
		all[name] = fencetest.Verb{Writes: true, Call: func(ctx context.Context, resource string) error {
			kv, err := m.KV(resource)
			if err != nil {
				return err
			}
			return write(ctx, kv, "d "+resource, "new")
		}}
	}
	return all
}

// A write takes one request once the mark has the token and its lock. A mark that need not change is not written.
func TestMarks_rules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		told, sent := make(fencetest.Told, 9), 0
		strict, err := etcdfence.NewMarks(c, etcdfence.Options{Hooks: told.Hooks()})
		require.NoError(t, err)
		lax, err := etcdfence.NewMarks(c, etcdfence.Options{AllowUnnamed: true, Hooks: told.Hooks()})
		require.NoError(t, err)
		c.Inject(fakeetcd.Any, fakeetcd.Fault{Match: func(fakeetcd.Call) bool { sent++; return false }})
		rules := fencetest.Rules{Verbs: verbs(strict), Lax: verbs(lax), Told: told, Marks: marksOn(srv)}
		rules.Watch = func(t *testing.T, resource string) func(fencetest.Step) {
			t.Helper()
			rev := srv.Rev()
			sent = 0
			return func(s fencetest.Step) {
				writes := s.Verb.Writes && s.Err == nil
				require.Equal(t, writes, dataOf(srv)(resource) == "new", "%+v", s)
				require.Equal(t, writes || s.Before != s.After, srv.Rev() > rev, "%+v", s)
				requests := 1
				if s.Err == nil && (s.Before != s.After || !s.Verb.Reads && !s.Verb.Looks && s.Lock != s.After.Lock) {
					requests = 2
				}
				require.Equal(t, requests, sent, "%+v", s)
			}
		}
		rules.Decide(t)
		rules.Watch = nil
		rules.Names(t, 1024)
	})
}

func TestMarks_refusesBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		m, err := etcdfence.NewMarks(c, etcdfence.Options{})
		require.NoError(t, err)
		_, err = etcdfence.NewMarks(nil, etcdfence.Options{})
		require.ErrorContains(t, err, "kv is nil")
		_, err = etcdfence.NewMarks(c, etcdfence.Options{MaxEra: 32768})
		require.ErrorContains(t, err, "etcdfence: Options.MaxEra is 32768, want 1 to 32767")
		resources := map[string]string{"": "etcdfence: resource is empty, want 1 to 1024 bytes"}
		for bad, want := range map[string]string{
			strings.Repeat("x", 1025): " has 1025 bytes, want 1 to 1024",
			"a\x00":                   ` is "a\x00", want UTF-8 without NUL`,
			"\xff":                    ` is "\xff", want UTF-8`,
		} {
			_, err := etcdfence.NewMarks(c, etcdfence.Options{Prefix: bad})
			require.ErrorContains(t, err, "Options.Prefix"+want)
			resources[bad] = "etcdfence: resource" + want
		}
		fencetest.Refuse(t, verbs(m), resources)
		require.Empty(t, srv.Calls(fakeetcd.Any), "nothing was sent")

		// How an operator lowers a mark after a token was accepted that was never granted; see docs/guarantees.md.
		require.NoError(t, newMarks(t, c).Claim(with(t, math.MaxInt64), "orders"), "every era is allowed")
		require.ErrorIs(t, m.Claim(with(t, 41), "orders"), fence.ErrStale)
		srv.Put("fence/orders", "41 0")
		require.NoError(t, m.Claim(with(t, 54), "orders"))
	})
}

// Another holder acts before and after each request of each verb.
func TestMarks_overlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		rules := fencetest.Rules{Verbs: verbs(newMarks(t, c)), Marks: marksOn(srv)}
		rules.Overlap(t, verbs(newMarks(t, srv.NewClient(t.Context()))), func(moment func()) {
			c.Inject(fakeetcd.Any, fakeetcd.Fault{OnRequest: moment, OnAnswer: moment})
		}, dataOf(srv))
	})
}

// dataOf returns the data of a resource.
func dataOf(srv *fakeetcd.Server) func(resource string) string {
	return func(resource string) string { return contents(srv, "d")["d "+resource] }
}

// marksOn reads the marks of a resource.
func marksOn(srv *fakeetcd.Server) func(t *testing.T, resource string) fencetest.Marks {
	return func(t *testing.T, resource string) fencetest.Marks {
		t.Helper()
		value := contents(srv, "fence/"+resource)["fence/"+resource]
		m, ok := admission.ParseMarks(value)
		require.True(t, ok || value == "", "%q", value)
		return fencetest.Marks(m)
	}
}

// If the request or the answer of one of the transactions is lost, the verb returns the client's error, with the name of
// the mark unless it is a write of the KV, and sends nothing again. Repeating the call is safe.
func TestMarks_lostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, transactions := range map[string]int{"Put": 2, "Claim": 2, "Move": 2, "ClaimRead": 1} {
			for _, lost := range []fakeetcd.Message{fakeetcd.Request, fakeetcd.Answer} {
				for at := 1; at <= transactions; at++ {
					srv, c := start(t)
					srv.Put("fence/r", "7 0 accounts")
					n := 0
					c.Inject(fakeetcd.Txn, fakeetcd.Fault{
						Lose: lost, Err: fakeetcd.ErrUnavailable, Match: func(fakeetcd.Call) bool { n++; return n == at },
					})
					verb, lock := verbs(newMarks(t, c))[name], "accounts"
					if verb.Moves {
						lock = "ledger"
					}
					after := admission.Marks{Write: 7, Lock: "accounts"}.
						After(admission.Bid{Token: 41, Read: verb.Reads, Lock: lock, Moves: verb.Moves}).String()
					ctx := verb.Context(t.Context(), 41, lock)
					err := verb.Call(ctx, "r")
					require.Error(t, err)
					require.NotErrorIs(t, err, fence.ErrStale)
					require.NotErrorIs(t, err, fence.ErrOtherLock)
					require.Equal(t, name != "Put", strings.HasPrefix(err.Error(), `etcdfence: mark at "fence/r": `), err)
					require.Len(t, c.Calls(fakeetcd.Txn), at, "not sent again")
					done := lost == fakeetcd.Answer && at == transactions
					require.Equal(t, done, contents(srv, "")["fence/r"] == after, "%s %v %d", name, lost, at)
					require.Equal(t, done && name == "Put", len(contents(srv, "d")) == 1, "both or neither")
					require.NoError(t, verb.Call(ctx, "r"))
					require.Equal(t, after, contents(srv, "")["fence/r"])
				}
			}
		}
		_, c := start(t)
		c.Inject(fakeetcd.Get, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		require.ErrorContains(t, newMarks(t, c).Check(with(t, 41), "r"), `etcdfence: mark at "fence/r": etcdserver: permission denied`)
	})
}

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

// requests are operations of all kinds on few keys, so that they affect each other. The server refuses some of them.
func requests(lease clientv3.LeaseID) []clientv3.Op {
	ops := func(ops ...clientv3.Op) []clientv3.Op { return ops }
	is := func(value string) []clientv3.Cmp {
		return []clientv3.Cmp{clientv3.Compare(clientv3.Value("d/1"), "=", value)}
	}
	put, remove := clientv3.OpPut("d/1", "a", clientv3.WithPrevKV()), clientv3.OpDelete("d/1", clientv3.WithPrevKV())
	read, other := clientv3.OpGet("d/", clientv3.WithPrefix(), clientv3.WithLimit(2)), clientv3.OpPut("d/2", "b")
	third := clientv3.OpPut("d/3", "c")
	nested := clientv3.OpTxn(is("a"), ops(remove, read), ops(clientv3.OpTxn(nil, ops(put, other), nil)))
	return ops(
		put, other, remove, read, nested,
		clientv3.OpPut("d/1", "b", clientv3.WithLease(lease), clientv3.WithPrevKV()),
		clientv3.OpDelete("d/", clientv3.WithPrefix(), clientv3.WithPrevKV()), clientv3.OpDelete("d/2"),
		clientv3.OpTxn(nil, nil, nil), clientv3.OpTxn(nil, ops(read), nil), clientv3.OpTxn(nil, ops(read, put), nil),
		clientv3.OpTxn(nil, nil, ops(put)), clientv3.OpTxn(is("b"), nil, nil), clientv3.OpTxn(is("a"), ops(remove), nil),
		clientv3.OpTxn(is("b"), ops(read, put), ops(remove, read)), clientv3.OpTxn(is("a"), ops(third, nested), ops(nested, third)),
		clientv3.OpPut("d/1", "", clientv3.WithIgnoreValue()),      // refused if there is no value
		clientv3.OpPut("d/2", "c", clientv3.WithLease(lease+1)),    // refused, since there is no such lease
		clientv3.OpTxn(nil, ops(read), ops(put, put)),              // refused, since it puts one key twice
		clientv3.OpTxn(is("a"), ops(other, put, nested), ops(put)), // the same, in its inner transaction
	)
}

// do makes a request and returns the answer as text.
func do(ctx context.Context, kv clientv3.KV, op clientv3.Op) (string, error) {
	resp, err := kv.Do(ctx, op)
	return fmt.Sprint((*pb.PutResponse)(resp.Put()), (*pb.RangeResponse)(resp.Get()),
		(*pb.DeleteRangeResponse)(resp.Del()), (*pb.TxnResponse)(resp.Txn())), err
}
