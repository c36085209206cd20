package queue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

var errEnough = errors.New("enough")

// stand enters a candidate; its value is the suffix after the mark.
func (e *env) stand(t *testing.T, priority int, value string) queue.Entry {
	t.Helper()
	entry, _, err := e.Enter(t.Context(), e.entry(queue.CandidateMark(priority)+value), value, false)
	require.NoError(t, err)
	return entry
}

// touched are the values of those who were asked to step back.
func (e *env) touched() []string {
	var list []string
	for _, kv := range e.srv.Keys("a/") {
		if kv.ModRevision != kv.CreateRevision {
			list = append(list, string(kv.Value))
		}
	}
	return list
}

// replaced has an entry's key be somebody else's.
func (e *env) replaced(entry queue.Entry) {
	e.srv.Delete(entry.Key)
	e.srv.Put(entry.Key, "")
}

// order is the values of those in the queue, in their order.
func (e *env) order(t *testing.T) []string {
	t.Helper()
	byAge := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
	resp, err := e.c.Get(t.Context(), "a/", clientv3.WithPrefix(), byAge)
	require.NoError(t, err)
	var list []string
	for _, kv := range resp.Kvs {
		list = append(list, string(kv.Value))
	}
	return list
}

func TestPriorityOf(t *testing.T) {
	for key, want := range map[string]int{
		"a/1f-c0-x": 0, "a/1f-c5-x": 5, "a/1f-c9999-x": 9999, "a/1f-c5-": 5, "a/1f-c5-x-y": 5,
		"a/1f": -1, "a/1f-": -1, "a/1f-x0": -1, "a/1f-c5": -1, "a/1f-5-x": -1, "a/1f-c-x": -1,
		"a/1f-cx-x": -1, "a/1f-c5x-x": -1,
		"a/1f-c5-x/y": -1, "a/b/1f-c5-x": -1, "a/": -1,
	} {
		priority, candidate := queue.PriorityOf("a/", []byte(key))
		require.Equal(t, want >= 0, candidate, key)
		if candidate {
			require.Equal(t, want, priority, key)
		}
	}
	e := queue.NewEntry("a", 0x1f, queue.CandidateMark(42)+"n0")
	priority, candidate := queue.PriorityOf(e.Prefix, []byte(e.Key))
	require.True(t, candidate)
	require.Equal(t, 42, priority)
}

func TestQueue_Overtake(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		e.stand(t, 0, "leader")
		e.enter(t, "plain")
		e.stand(t, 1, "low")
		e.stand(t, 2, "equal")
		e.stand(t, 3, "high")
		e.plant(t, "a/nested/1-c0-", 1)
		other := e.another(t)
		other.stand(t, 0, "other")
		us := e.stand(t, 2, "us")
		e.stand(t, 0, "behind")
		before := e.order(t)
		require.NoError(t, e.Overtake(t.Context(), us, 0))
		require.ElementsMatch(t, []string{"low", "other"}, e.touched())
		require.Equal(t, before, e.order(t), "it asks, no more")
		rev := e.srv.Rev()
		require.NoError(t, e.Overtake(t.Context(), us, 0))
		require.Equal(t, rev, e.srv.Rev(), "each is asked once")
	})
}

// One that has stepped back spares those for whom it did, and no others.
func TestQueue_Overtake_afterItWasAsked(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		e.stand(t, 0, "leader")
		e.stand(t, 0, "stood")
		asked := e.srv.Put("touch", "")
		e.stand(t, 0, "came later")
		us := e.stand(t, 1, "us")
		require.NoError(t, e.Overtake(t.Context(), us, asked))
		require.Equal(t, []string{"came later"}, e.touched())
	})
}

// pain 6: those who are asked are asked once, whatever becomes of the request; late ones find other keys, or none.
func TestQueue_Overtake_disturbed(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"answer lost":            {Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable},
		"answer lost in silence": {Times: 1, Lose: fakeetcd.Answer},
		"request lost":           {Times: 1, Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable},
		"request late":           {Times: 1, Before: 7 * time.Second, Late: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				e.stand(t, 0, "leader")
				low := e.stand(t, 0, "low")
				us := e.stand(t, 1, "us")
				e.c.Inject(fakeetcd.Txn, fault)
				rev := e.srv.Rev()
				require.NoError(t, e.Overtake(t.Context(), us, 0))
				e.at(time.Minute)
				require.Equal(t, rev+1, e.srv.Rev())
				require.Equal(t, []string{"low"}, e.touched())
				kv := e.srv.Keys(low.Key)[0]
				require.Equal(t, int64(e.lease), kv.Lease)
				require.Equal(t, "low", string(kv.Value))
			})
		})
	}
}

// Many are asked in few requests, within the server's limit, also where that is lower than usual; one that has gone
// meanwhile is passed over.
func TestQueue_Overtake_many(t *testing.T) {
	for name, limit := range map[string]int{"usual": 128, "lower": 16, "lowest": 1} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				const low = 150
				t := e.t
				e.stand(t, 0, "leader")
				var gone queue.Entry
				for i := range low {
					gone = e.stand(t, 0, fmt.Sprint(i))
				}
				us := e.stand(t, 1, "us")
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCTooManyOps, Match: func(call fakeetcd.Call) bool {
					return len(call.Request.(*pb.TxnRequest).Success) > limit
				}})
				e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, After: time.Second})
				got := inBackground(e, func() (struct{}, error) { return struct{}{}, e.Overtake(t.Context(), us, 0) })
				require.True(t, e.srv.Delete(gone.Key))
				before := len(e.c.Calls(fakeetcd.Txn))
				require.NoError(t, receive(t, got).err)
				require.Len(t, e.touched(), low-1)
				sent := e.c.Calls(fakeetcd.Txn)[before:]
				var refused int
				for _, call := range sent {
					if call.Err != nil {
						refused++
					}
				}
				if limit == 128 {
					require.Len(t, sent, 3)
				}
				require.LessOrEqual(t, refused, 6, "60, 30, 15, 7, 3, 1")
			})
		})
	}
}

func TestQueue_StepBack(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		leader := e.stand(t, 0, "leader")
		us := e.stand(t, 0, "us")
		last := e.stand(t, 0, "last")
		ahead, err := e.Ahead(t.Context(), us)
		require.NoError(t, err)
		require.Equal(t, queue.Ahead{Key: leader.Key, Rev: leader.Rev, Owner: true}, ahead)
		next := e.entry(queue.CandidateMark(0) + "next")
		done, entered, now, err := e.StepBack(t.Context(), us, next, ahead, "us again")
		require.NoError(t, err)
		require.True(t, done)
		require.Equal(t, e.srv.Rev(), entered.Rev)
		require.Equal(t, queue.Ahead{Key: last.Key, Rev: last.Rev}, now)
		require.Equal(t, []string{"leader", "last", "us again"}, e.order(t))

		// Repeated, it does nothing, and what became of it can be found.
		rev := e.srv.Rev()
		done, _, _, err = e.StepBack(t.Context(), us, next, ahead, "us again")
		require.NoError(t, err)
		require.False(t, done)
		require.Equal(t, rev, e.srv.Rev())
		_, err = e.Ahead(t.Context(), us)
		require.ErrorIs(t, err, queue.ErrGone)
		found, err := e.Find(t.Context(), next)
		require.NoError(t, err)
		require.Equal(t, entered, found)
		found, err = e.Find(t.Context(), us)
		require.NoError(t, err)
		require.Zero(t, found.Rev)
	})
}

// All or nothing: it does not step back when its turn has come, nor from a place that is not its own.
func TestQueue_StepBack_notDone(t *testing.T) {
	for name, before := range map[string]func(*env, queue.Entry, queue.Entry){
		"the one before has gone":    func(e *env, leader, _ queue.Entry) { e.srv.Delete(leader.Key) },
		"the one before is another":  func(e *env, leader, _ queue.Entry) { e.replaced(leader) },
		"its key is gone":            func(e *env, _, us queue.Entry) { e.srv.Delete(us.Key) },
		"its key is somebody else's": func(e *env, _, us queue.Entry) { e.replaced(us) },
		"the next key is taken":      func(e *env, _, _ queue.Entry) { e.srv.Put(e.entry("next").Key, "") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				leader, us := e.stand(t, 0, "leader"), e.stand(t, 0, "us")
				ahead, err := e.Ahead(t.Context(), us)
				require.NoError(t, err)
				before(e, leader, us)
				rev := e.srv.Rev()
				done, entered, now, err := e.StepBack(t.Context(), us, e.entry("next"), ahead, "us")
				require.NoError(t, err)
				require.False(t, done)
				require.Zero(t, entered.Rev)
				require.Zero(t, now)
				require.Equal(t, rev, e.srv.Rev())
			})
		})
	}
}

// Those who are asked together go one after the other, also past one that is not asked; who leads is not waited for.
func TestQueue_AwaitSettled(t *testing.T) {
	for name, tc := range map[string]struct {
		asked  []string // of leader, one, two; by name
		waits  bool
		settle []string // who goes then
	}{
		"nobody":               {},
		"the leader":           {asked: []string{"leader"}},
		"one further ahead":    {asked: []string{"one"}, waits: true, settle: []string{"one"}},
		"who comes to lead":    {asked: []string{"one"}, waits: true, settle: []string{"leader"}},
		"the one before":       {asked: []string{"two"}, waits: true, settle: []string{"two"}},
		"both":                 {asked: []string{"one", "two"}, waits: true, settle: []string{"one", "two"}},
		"the one before stays": {asked: []string{"two"}, waits: true, settle: []string{"leader", "one"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				e.srv.Put("a/nested/older", "") // which hides who is the first
				of := make(map[string]queue.Entry)
				for _, value := range []string{"leader", "one", "two", "us"} {
					of[value] = e.stand(t, 0, value)
				}
				for _, value := range tc.asked {
					_, err := e.c.Put(t.Context(), of[value].Key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
					require.NoError(t, err)
				}
				got := inBackground(e, func() (struct{}, error) { return struct{}{}, e.AwaitSettled(t.Context(), of["us"]) })
				if tc.waits {
					e.at(time.Minute)
					requirePending(t, got)
					for _, value := range tc.settle {
						require.True(t, e.srv.Delete(of[value].Key))
					}
				}
				settled := receive(t, got)
				require.NoError(t, settled.err)
				require.LessOrEqual(t, settled.at, time.Minute+time.Second)
				synctest.Wait()
				require.Zero(t, e.srv.Watchers())
			})
		})
	}
}

func TestQueue_AwaitSettled_ends(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		e.stand(t, 0, "leader")
		one, us := e.stand(t, 0, "one"), e.stand(t, 1, "us")
		require.NoError(t, e.Overtake(t.Context(), us, 0))
		ctx, cancel := context.WithCancelCause(t.Context())
		got := inBackground(e, func() (struct{}, error) { return struct{}{}, e.AwaitSettled(ctx, us) })
		e.at(10 * time.Second)
		requirePending(t, got)
		cancel(errEnough)
		require.ErrorIs(t, receive(t, got).err, errEnough)
		require.True(t, e.srv.Delete(us.Key))
		require.ErrorIs(t, e.AwaitSettled(t.Context(), us), queue.ErrGone)
		require.NotZero(t, one.Rev)
	})
}
