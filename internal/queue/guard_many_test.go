package queue_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// numbered are names that begin alike.
func numbered(i int) string { return fmt.Sprintf("jobs/%03d", i) }

// scattered are names that do not.
func scattered(i int) string { return string(rune('A'+i%50)) + fmt.Sprint(i/50) }

// span is what a watch was opened for.
type span struct{ low, high string }

func watched(call fakeetcd.Call) span {
	r := call.Request.(*pb.WatchCreateRequest)
	return span{string(r.Key), string(r.RangeEnd)}
}

// requireWatchers wants as many watches as n guarded entries may have.
func (e *env) requireWatchers(t *testing.T, n int) {
	t.Helper()
	if n <= 16 {
		require.Equal(t, n, e.srv.Watchers())
		return
	}
	require.LessOrEqual(t, e.srv.Watchers(), 16)
	require.Positive(t, e.srv.Watchers())
}

// few or many, whatever their order and their pace: each one's end is told and nothing else, with no more than 16 watches.
func TestGuards_fewOrMany(t *testing.T) {
	for _, n := range []int{1, 16, 17, 300} {
		for order, arrange := range map[string]func([]place){
			"ascending":  func([]place) {},
			"descending": slices.Reverse[[]place],
			"shuffled": func(list []place) {
				rand.New(rand.NewPCG(1, 2)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			},
		} {
			for names, name := range map[string]func(int) string{"numbered": numbered, "scattered": scattered} {
				for _, pause := range []time.Duration{0, 13 * time.Millisecond, 300 * time.Millisecond} {
					t.Run(fmt.Sprint(n, order, names, pause), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { fewOrMany(t, n, arrange, name, pause) })
					})
				}
			}
		}
	}
}

func fewOrMany(t *testing.T, n int, arrange func([]place), name func(int) string, pause time.Duration) {
	t.Helper()
	e := start(t)
	g := e.guards(t)
	list := e.places(t, n, name)
	arrange(list)
	for i, p := range list {
		g.add(p)
		time.Sleep(pause)
		if i%7 == 3 { // others come and go
			_, _ = e.srv.Delete(p.Key+"0"), e.srv.Put(p.Key+"0", "")
		}
	}
	time.Sleep(time.Second)
	synctest.Wait()
	e.requireWatchers(t, n)
	g.requireTold(t)

	var want []told
	for i, p := range list {
		switch i % 3 {
		case 0:
			require.True(t, e.srv.Delete(p.Key))
			want = append(want, deleted(p))
		case 1:
			e.srv.Put(p.Key, "x")
			want = append(want, overwritten(p))
		default:
			e.srv.Put(p.Key+"0", "") // foreign, and in many cases in a span
			e.srv.Delete(p.Key + "0")
		}
	}
	synctest.Wait()
	g.requireTold(t, want...)
	require.Empty(t, g.warnings)
	g.remove(list...)
	synctest.Wait()
	require.Zero(t, e.srv.Watchers())
}

// Some come and others go all the time: what stays is guarded throughout, and what goes is told no more.
func TestGuards_whileOthersComeAndGo(t *testing.T) {
	for _, stay := range []int{4, 40} {
		t.Run(fmt.Sprint(stay), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				g := e.guards(t)
				list := g.guarded(t, stay, numbered)
				var passing []place
				for i := range 200 {
					p := e.places(t, 1, func(int) string { return numbered((i*37)%400) + "/x" })[0]
					g.add(p)
					passing = append(passing, p)
					time.Sleep(40 * time.Millisecond)
					if len(passing) > 20 {
						g.remove(passing[0])
						e.leave(t, passing[0])
						passing = passing[1:]
					}
					if i%(200/stay) == 0 {
						p := list[i/(200/stay)]
						require.True(t, e.srv.Delete(p.Key))
						synctest.Wait()
						g.requireTold(t, deleted(p))
					}
					require.LessOrEqual(t, e.srv.Watchers(), 16)
				}
				g.requireTold(t)
			})
		})
	}
}

// When they have become few, nobody else's keys are told to us any more.
func TestGuards_fewAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		list := g.guarded(t, 300, numbered)
		g.remove(list[10:]...)
		more := e.places(t, 2, scattered)
		g.add(more...)
		time.Sleep(time.Second)
		synctest.Wait()
		list = append(list[:10], more...)
		require.Equal(t, len(list), e.srv.Watchers())
		calls := e.c.Calls(fakeetcd.Watch)
		for _, call := range calls[len(calls)-len(list):] {
			require.Equal(t, watched(call).low+"\x00", watched(call).high)
		}
		var want []told
		for _, p := range list {
			require.True(t, e.srv.Delete(p.Key))
			want = append(want, deleted(p))
		}
		synctest.Wait()
		g.requireTold(t, want...)
		g.remove(list...)
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())
	})
}

// What has most in common shares a watch: names of one kind do not make a span that everything else lies in.
func TestGuards_spansAreOfTheLike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		g.guarded(t, 60, func(i int) string { return fmt.Sprintf("%c/%03d", 'a'+i%3, i) })
		calls := e.c.Calls(fakeetcd.Watch)
		for _, call := range calls[len(calls)-e.srv.Watchers():] {
			s := watched(call)
			require.Equal(t, s.low[0], s.high[0], "%+v", s)
		}
	})
}

// Keys are read in flat transactions that change nothing, each under a watch that exists.
func TestGuards_reads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		before := len(e.c.Calls(fakeetcd.Txn)) + 300
		list := g.guarded(t, 300, numbered)
		first := e.c.Calls(fakeetcd.Watch)[0]
		read := make(map[string]bool)
		for _, call := range e.c.Calls(fakeetcd.Txn)[before:] {
			r := call.Request.(*pb.TxnRequest)
			require.Empty(t, r.Compare)
			require.LessOrEqual(t, len(r.Success), 128)
			require.False(t, call.Sent.Before(first.Answered))
			for _, op := range r.Success {
				require.True(t, op.GetRequestRange().KeysOnly)
				require.Empty(t, op.GetRequestRange().RangeEnd)
				read[string(op.GetRequestRange().Key)] = true
			}
		}
		require.Len(t, read, len(list))
	})
}

// Where entries share watches, one that comes or goes changes little, however different their names.
func TestGuards_changesAreCheap(t *testing.T) {
	for _, n := range []int{17, 40, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				g := e.guards(t)
				r, k := rand.New(rand.NewPCG(1, 2)), 0
				name := func(int) string { k++; return fmt.Sprintf("%c%d", 'A'+r.IntN(50), k) }
				list := g.guarded(t, n, name)
				watches, reads := len(e.c.Calls(fakeetcd.Watch)), len(e.c.Calls(fakeetcd.Txn))
				const changes = 200
				for range changes {
					g.remove(list[0])
					list = append(list[1:], e.places(t, 1, name)...)
					g.add(list[n-1])
					time.Sleep(300 * time.Millisecond)
				}
				require.Less(t, len(e.c.Calls(fakeetcd.Watch))-watches, changes/2)
				keys := 0
				for _, call := range e.c.Calls(fakeetcd.Txn)[reads:] {
					if r := call.Request.(*pb.TxnRequest); len(r.Compare) == 0 {
						keys += len(r.Success)
					}
				}
				require.Less(t, keys, 2*changes)
			})
		})
	}
}
