package election_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

var none = election.Leader{}

// audience is an observer that keeps up with the changes.
type audience struct {
	*action // the iteration
	seen    chan election.Leader
	stop    context.CancelFunc
}

func observe(t *testing.T, client *fakeetcd.Client, name string) *audience {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &audience{seen: make(chan election.Leader, 10000), stop: cancel}
	a.action = inBackground(func() (last error) {
		for l, err := range election.Observe(ctx, client.Client, name) {
			if last = err; err == nil { // after an error the iteration must end
				a.seen <- l
			}
		}
		return last
	})
	t.Cleanup(func() { cancel(); <-a.done })
	return a
}

// takes returns what Observe has yielded since the last call.
func (a *audience) takes() []election.Leader {
	synctest.Wait()
	got := []election.Leader{}
	for len(a.seen) > 0 {
		got = append(got, <-a.seen)
	}
	return got
}

func (a *audience) sees(t *testing.T, want ...election.Leader) {
	t.Helper()
	require.Equal(t, want, a.takes())
}

// catchUp is longer than etcd delays a watch that begins in the past, such as a hub's watch after a change of leader.
const catchUp = 200 * time.Millisecond

func (a *audience) seesNothing(t *testing.T) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, a.seen)
}

// ended waits for the end of the iteration, and returns its error.
func (a *audience) ended(t *testing.T) error {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(time.Second):
		require.FailNow(t, "the iteration goes on")
	}
	return a.err
}

// An observer that keeps up sees every change. The end of a leader costs one read, as does its beginning after nobody.
func TestObserve_seesEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		a := observe(t, s.c, "n")
		a.sees(t, none)
		reads := len(s.c.Calls(fakeetcd.Get))
		for i := range 100 {
			l := s.stands(t, strconv.Itoa(i))
			s.dies(t, l)
			time.Sleep(catchUp)
			a.sees(t, l, none)
		}
		require.Len(t, s.c.Calls(fakeetcd.Get), reads+200)
	})
}

// While somebody leads, the server sends an observer no events of nested names and waiting candidates. While nobody
// leads, it sends none of keys outside of queues.
func TestObserve_isNotSentNestedNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		var sent atomic.Int64
		s.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{OnAnswer: func() { sent.Add(1) }})
		a := observe(t, s.c, "n")
		a.sees(t, none)
		s.put(t, keyOf("n/~nested", s.grant(t), ""), "below a node of a tree", 0)
		time.Sleep(catchUp)
		require.Zero(t, sent.Load())
		first := s.stands(t, "first")
		a.sees(t, first)
		require.EqualValues(t, 1, sent.Swap(0))
		second := s.stands(t, "second")
		busy := func() {
			for range 100 {
				lease := s.grant(t)
				s.dies(t, s.put(t, keyOf("n/nested", lease, ""), "nested", lease))
				s.dies(t, s.stands(t, "waits"))
			}
			time.Sleep(catchUp)
		}
		busy()
		require.Zero(t, sent.Load())
		s.dies(t, first)
		a.sees(t, second)
		require.EqualValues(t, 1, sent.Load())
		busy()
		a.seesNothing(t)
		require.EqualValues(t, 1, sent.Load())
	})
}

// All observers of a name share a watch, and all watches of a client a stream, until the last observer has left.
func TestObserve_sharesOneWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		l := s.stands(t, "a")
		var all []*audience
		for range 50 {
			all = append(all, observe(t, s.c, "n"))
		}
		other := observe(t, s.c, "m")
		for _, a := range all {
			a.sees(t, l)
		}
		other.sees(t, none)
		require.Equal(t, 2, s.srv.Watchers())
		require.Len(t, s.c.Calls(fakeetcd.Get), 51, "one for each observer; the hub reads for the first of a name")

		l = s.proclaims(t, l, "b")
		for _, a := range all {
			a.sees(t, l)
		}
		other.stop()
		for _, a := range all[1:] {
			a.stop()
			require.NoError(t, a.ended(t))
		}
		require.NoError(t, other.ended(t))
		synctest.Wait() // until the client has cancelled the watch at the server
		require.Equal(t, 1, s.srv.Watchers())
		s.dies(t, l)
		all[0].sees(t, none)
		all[0].stop()
		require.NoError(t, all[0].ended(t))
		synctest.Wait()
		require.Zero(t, s.srv.Watchers())
		calls := len(s.c.Calls(fakeetcd.Any))
		time.Sleep(time.Hour)
		require.Len(t, s.c.Calls(fakeetcd.Any), calls)
	})
}

// A change that happens while an observer begins is not lost between its read and its watch.
func TestObserve_changesWhileItBegins(t *testing.T) {
	for _, method := range []fakeetcd.Method{fakeetcd.Watch, fakeetcd.Get} {
		for _, delay := range []fakeetcd.Fault{{Before: time.Second}, {After: time.Second}} {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				first := s.stands(t, "first")
				delay.Times = 1
				s.c.Inject(method, delay)
				a := observe(t, s.c, "n")
				time.Sleep(time.Second / 2)
				a.seesNothing(t)
				last := s.proclaims(t, first, "last")
				time.Sleep(time.Second/2 + catchUp)
				synctest.Wait()
				for len(a.seen) > 1 {
					<-a.seen
				}
				a.sees(t, last)
			})
		}
	}
}

// A slow consumer skips to the latest change.
func TestObserve_slowConsumer(t *testing.T) {
	value := strings.Repeat("v", 100<<10)
	for name, tt := range map[string]struct {
		changes int
		value   string
		kept    bool // all of them
	}{
		"within its backlog":  {128, "", true},
		"a change more":       {129, "", false},
		"far behind":          {1000, "", false},
		"ten large values":    {10, value, true},
		"eleven large values": {11, value, false},
		"one that is larger":  {1, strings.Repeat(value, 12), true},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newStage(t)
			l := s.stands(t, "")
			fast := observe(t, s.c, "n")
			fast.sees(t, l)
			for i := range 11 { // more than a backlog keeps: what it drops must not count any longer
				l = s.proclaims(t, l, value+strconv.Itoa(-i))
				fast.sees(t, l)
			}
			var got []election.Leader
			for seen, err := range election.Observe(t.Context(), s.c.Client, "n") {
				require.NoError(t, err)
				got = append(got, seen)
				if len(got) == 1 {
					for i := range tt.changes {
						l = s.proclaims(t, l, tt.value+strconv.Itoa(i))
						fast.sees(t, l)
					}
				}
				if seen == l {
					break
				}
			}
			if tt.kept {
				require.Len(t, got, 1+tt.changes)
			} else {
				require.Len(t, got, 2, "the first and the last")
			}
		})
	}
}

// model applies the rule of who leads to the whole key space: the oldest contender of "n", until its key is deleted or
// taken off its lease.
type model struct {
	all    []election.Leader // the contenders, oldest first
	leader election.Leader
	views  []*view
}

// view is what an observer must see.
type view struct {
	*audience
	highest int64
	shown   []election.Leader
}

// at takes the whole key space of one revision.
func (m *model) at(kvs []*mvccpb.KeyValue) {
	all := []election.Leader{}
	for _, kv := range kvs {
		id, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), "n/"), "-")
		if kv.Lease != 0 && id == strconv.FormatInt(kv.Lease, 16) {
			all = append(all, election.Leader{
				Value: string(kv.Value), Revision: kv.CreateRevision, Key: string(kv.Key), Lease: clientv3.LeaseID(kv.Lease),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b election.Leader) int { return int(a.Revision - b.Revision) }) // kvs are in the order of keys
	i := slices.IndexFunc(all, func(l election.Leader) bool { return l.Key == m.leader.Key && l.Revision == m.leader.Revision })
	m.all = all
	if m.leader = none; len(all) > 0 {
		m.leader = all[max(i, 0)]
	}
	for _, v := range m.views {
		v.at(m.leader)
	}
}

func (v *view) at(l election.Leader) {
	if l.Revision < v.highest {
		l = none
	}
	v.highest = max(v.highest, l.Revision)
	if len(v.shown) == 0 || l != v.shown[len(v.shown)-1] {
		v.shown = append(v.shown, l)
	}
}

// Observe yields the leaders of the model, whatever happens to its watches and to the keys below the name: changes of
// several keys in one revision, changes of leases, keys of nested names, stray keys. So does an observer that comes later.
// Changes that are compacted before a broken watch can read them are skipped. Current and Candidates agree with the key
// space too.
func TestObserve_agreesWithTheKeySpace(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			rnd := rand.New(rand.NewPCG(1, seed))
			compacts := seed%3 == 0
			var leases []clientv3.LeaseID
			var keys []string
			for range 3 {
				leases = append(leases, s.grant(t))
				for _, suffix := range []string{"", "-a", "-b"} {
					keys = append(keys, keyOf("n", leases[len(leases)-1], suffix))
				}
			}
			keys = append(keys, "n/stray", "n/~own/x", "n/x/"+strconv.FormatInt(int64(leases[0]), 16), "n/"+strconv.FormatInt(int64(leases[1]), 16)+"/x")
			var m model
			join := func() {
				v := &view{audience: observe(t, s.c, "n")}
				v.at(m.leader)
				m.views = append(m.views, v)
				synctest.Wait()
			}
			join()
			for range 60 {
				var ops []clientv3.Op
				for _, i := range rnd.Perm(len(keys))[:1+rnd.IntN(3)] {
					switch {
					case rnd.IntN(3) == 0:
						ops = append(ops, clientv3.OpDelete(keys[i]))
					case i < 9 && (compacts || rnd.IntN(4) > 0):
						ops = append(ops, clientv3.OpPut(keys[i], strconv.Itoa(rnd.IntN(3)), clientv3.WithLease(leases[i/3])))
					default:
						ops = append(ops, clientv3.OpPut(keys[i], "", clientv3.WithLease(leases[rnd.IntN(3)])))
					}
				}
				_, err := s.own.Txn(t.Context()).Then(ops...).Commit()
				require.NoError(t, err)
				m.at(s.srv.Keys("n/"))
				switch rnd.IntN(10) {
				case 0, 1:
					if rnd.IntN(2) == 0 {
						time.AfterFunc(5*time.Second, s.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: rpctypes.ErrGRPCNoLeader}))
					}
					s.c.BreakWatches([]error{rpctypes.ErrGRPCNoLeader, fakeetcd.ErrUnavailable, rpctypes.ErrGRPCInvalidAuthToken}[rnd.IntN(3)])
				case 2, 3:
					time.Sleep(time.Duration(rnd.Int64N(int64(catchUp))))
				case 4:
					synctest.Wait()
				case 7:
					all, err := election.Candidates(t.Context(), s.c.Client, "n")
					require.NoError(t, err)
					require.Equal(t, m.all, all)
					leader, err := election.Current(t.Context(), s.c.Client, "n")
					require.Equal(t, len(all) == 0, leader.None())
					if leader.None() {
						require.ErrorIs(t, err, election.ErrNoLeader)
						require.EqualError(t, err, `election: current leader of "n": election: no leader`)
					} else {
						require.NoError(t, err)
						require.Equal(t, all[0], leader)
					}
				case 5:
					if compacts {
						require.NoError(t, s.srv.Compact(s.srv.Rev()))
					}
				case 6:
					if !compacts {
						time.Sleep(time.Minute) // until the others have seen the leader, whom another key may stand before by now
					}
					join()
				}
			}
			time.Sleep(time.Minute)
			for _, v := range m.views {
				if !compacts {
					v.sees(t, v.shown...)
					continue
				}
				got, rest := v.takes(), v.shown
				require.Equal(t, rest[len(rest)-1], got[len(got)-1])
				for _, l := range got {
					next := slices.Index(rest, l)
					require.GreaterOrEqual(t, next, 0, "%v in %v", got, v.shown)
					rest = rest[next+1:]
				}
			}
		})
	}
}
