package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// onlooker is a use of Watch that records what it is shown.
type onlooker struct {
	c     *fakeetcd.Client
	seen  chan lease.Queue // large enough for a test
	err   chan error
	leave context.CancelFunc
}

func onlook(t *testing.T, c *fakeetcd.Client, name string) *onlooker {
	t.Helper()
	o := &onlooker{c: c, seen: make(chan lease.Queue, 100_000), err: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	o.leave = cancel
	go func() {
		for q, err := range lease.Watch(ctx, o.c.Client, name) {
			if err != nil {
				o.err <- err
				return
			}
			o.seen <- q
		}
		o.err <- nil
	}()
	synctest.Wait()
	return o
}

// sees checks what was shown since its last call.
func (o *onlooker) sees(t *testing.T, want ...string) {
	t.Helper()
	time.Sleep(time.Second) // a watch that begins in the past is late
	synctest.Wait()
	var got []string
	for range len(o.seen) {
		got = append(got, shape(<-o.seen))
	}
	require.Equal(t, want, got)
}

func (e *env) places(t *testing.T, owner string) string {
	t.Helper()
	id := e.s.Status().LeaseID
	key := fmt.Sprintf("a/%x-%s", int64(id), owner)
	e.put(t, key, owner, id)
	return key
}

func TestWatch_showsEveryChange(t *testing.T) {
	bubbleWith(t, lease.Options{Owner: "one"}, func(t *testing.T, e *env) {
		o := onlook(t, e.srv.NewClient(t.Context()), "a")
		o.sees(t, "|")
		l := e.lock(t, "a")
		o.sees(t, "exclusive:one |")
		e.lock(t, "a/nested")
		e.srv.Put("a/planted", "")
		e.lock(t, "b")
		o.sees(t)
		two := e.places(t, "two")
		e.places(t, "three")
		o.sees(t, "exclusive:one | exclusive:two", "exclusive:one | exclusive:two exclusive:three")
		e.put(t, two, "TWO", e.s.Status().LeaseID)
		e.release(t, "a", lease.ReleaseOptions{})
		o.sees(t, "exclusive:one | exclusive:TWO exclusive:three")
		e.srv.Put(two, "of no lease")
		require.NoError(t, l.Unlock(t.Context()))
		o.sees(t, "exclusive:one | exclusive:three", "exclusive:three |")

		p, err := e.s.TryPermit(t.Context(), "s", 2)
		require.NoError(t, err)
		slots := onlook(t, e.srv.NewClient(t.Context()), "s")
		slots.sees(t, "slot:one |")
		require.NoError(t, p.Unlock(t.Context()))
		slots.sees(t, "|")

		began := time.Now()
		o.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		require.Equal(t, "|", shape(receive(t, o.seen)))
		require.Less(t, time.Since(began), 200*time.Millisecond, "the last watch held, so the next one comes soon")
		o.sees(t)
		before := e.srv.Watchers()
		o.leave()
		slots.leave()
		require.NoError(t, <-o.err)
		require.NoError(t, <-slots.err)
		synctest.Wait()
		require.Equal(t, before-2, e.srv.Watchers())
	})
}

// A stream that falls silent does not break. Probes find it out, and the watch moves to another.
func TestWatch_leavesASilentStream(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		o := onlook(t, e.srv.NewClient(t.Context()), "a")
		o.sees(t, "|")
		time.Sleep(time.Minute)
		o.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour}) // also delays the events behind it
		began := time.Now()
		first := e.places(t, "first")
		e.srv.Delete(first)
		require.Equal(t, "exclusive:first |", shape(receive(t, o.seen)))
		require.Equal(t, "|", shape(receive(t, o.seen)))
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
	})
}

// Once the auth token of a stream has expired, the server refuses further watches on it. A probe finds that out, and the
// watch moves to another stream.
func TestWatch_leavesAStreamThatRefusesWatches(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		c := e.srv.NewClient(t.Context())
		var opened atomic.Int32
		c.Watcher = &answeredWatches{Watcher: c.Watcher, answer: func(_ string, watch clientv3.Op) *clientv3.WatchResponse {
			if len(watch.RangeBytes()) == 0 {
				return refused(rpctypes.ErrInvalidAuthToken) // of a probe
			}
			opened.Add(1)
			return nil
		}}
		o := onlook(t, c, "a")
		o.sees(t, "|")
		require.EqualValues(t, 1, opened.Load())
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Greater(t, opened.Load(), int32(1))
		e.places(t, "first")
		o.sees(t, "exclusive:first |")
	})
}

// A cluster with other keys at the seen revision, or that has not reached it, has another history: Watch shows its
// present queue.
func TestWatch_restored(t *testing.T) {
	for _, behind := range []bool{false, true} {
		inBubble(t, strconv.FormatBool(behind), func(t *testing.T) {
			e, later := start(t, lease.Options{}), start(t, lease.Options{})
			for i := range 10 {
				e.srv.Put("elsewhere", strconv.Itoa(i))
				if !behind {
					later.srv.Put("elsewhere", strconv.Itoa(i))
				}
			}
			later.places(t, "there")
			c := e.srv.NewClient(t.Context())
			restore := c.Restorable(later.srv.Client(t.Context()))
			o := onlook(t, c, "a")
			e.places(t, "here")
			o.sees(t, "|", "exclusive:here |")
			restore()
			c.BreakWatches(rpctypes.ErrGRPCNoLeader)
			o.sees(t, "exclusive:there |")
			o.leave()
			require.NoError(t, <-o.err)
		})
	}
}

func TestWatch_slowConsumer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const changes = 3 * 65 // there is room for 64, so the last one finds none
		n, last := 0, 0
		for q, err := range lease.Watch(timeout(t, time.Hour), e.c.Client, "a") {
			require.NoError(t, err)
			if n++; n == 1 {
				for i := range changes {
					e.places(t, strconv.Itoa(i))
				}
				time.Sleep(time.Second)
				synctest.Wait()
			}
			if last = len(q.Holders) + len(q.Waiters); last == changes {
				break
			}
		}
		require.Equal(t, changes, last)
		require.Less(t, n, 100)
	})
}

// Whatever happens to the keys and to the watch, each change of the queue is shown, as Inspect returns it. If the watch
// breaks and changes are compacted before they can be read, the present queue is shown.
func TestWatch_agreesWithInspect(t *testing.T) {
	text := func(q lease.Queue) string {
		for _, list := range [...][]lease.Contender{q.Holders, q.Waiters} {
			for i := range list {
				list[i].TTL = 0
			}
		}
		return fmt.Sprintf("%+v", q)
	}
	for range 20 {
		bubble(t, func(t *testing.T, e *env) {
			o := onlook(t, e.srv.NewClient(t.Context()), "a")
			id := e.s.Status().LeaseID
			now := text(e.inspect(t, "a"))
			want, shown, broken, compacted := []string{now}, "", false, false
			for range 50 {
				for i := range 1 + rand.IntN(8) {
					key := []string{"a/", "a/r", "a/s", "a/b/", "a/~slot/0/", "a/~slot/1/", "a/~b/"}[rand.IntN(7)] + fmt.Sprintf("%x-%d", int64(id), rand.IntN(5))
					switch rand.IntN(6) {
					case 0:
						e.srv.Put(key, strconv.Itoa(i))
					case 1, 2:
						e.srv.Delete(key)
					default:
						e.put(t, key, strconv.Itoa(i), id)
					}
					if q := text(e.inspect(t, "a")); q != now {
						want, now = append(want, q), q
					}
				}
				switch rand.IntN(5) {
				case 0:
					broken = true
					time.AfterFunc(2*time.Second, o.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: rpctypes.ErrGRPCNoLeader}))
					o.c.BreakWatches([]error{rpctypes.ErrGRPCNoLeader, fakeetcd.ErrUnavailable, rpctypes.ErrGRPCInvalidAuthToken}[rand.IntN(3)])
				case 1:
					compacted = true
					_ = e.srv.Compact(e.srv.Rev() - rand.Int64N(5))
				}
				if rand.IntN(3) > 0 && len(want) < 50 { // there is room for 64
					continue
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				var got []string
				for range len(o.seen) {
					shown = text(<-o.seen)
					got = append(got, shown)
				}
				require.Equal(t, now, shown)
				require.True(t, broken && compacted || slices.Equal(want, got), "%v\n%v", want, got)
				want, broken, compacted = nil, false, false
			}
		})
	}
}

func TestWatch_ends(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for _, err := range lease.Watch(t.Context(), e.c.Client, "a") {
			require.NoError(t, err)
			break
		}
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())

		// etcd may deny the watch alone, to a user that may read the queue but not the names below it.
		o := onlook(t, e.srv.NewClient(t.Context()), "a")
		o.sees(t, "|")
		o.c.Inject(fakeetcd.Get, fakeetcd.Fault{Err: errDenied})
		o.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		require.ErrorContains(t, receive(t, o.err), "permission denied")
	})
}

// A watch that was denied ends no other watch of its client, however long its consumer takes over the last queue.
func TestWatch_deniedWhileItsConsumerIsBusy(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		o := onlook(t, e.srv.NewClient(t.Context()), "b")
		opened := func() (n int) {
			for _, call := range o.c.Calls(fakeetcd.Watch) {
				if len(call.Request.(*pb.WatchCreateRequest).RangeEnd) > 0 { // it is no probe
					n++
				}
			}
			return n
		}
		for _, err := range lease.Watch(t.Context(), o.c.Client, "a") {
			if err != nil {
				require.ErrorContains(t, err, "permission denied")
				continue
			}
			ofA := func(call fakeetcd.Call) bool { return strings.Contains(fmt.Sprint(call.Request), `"a/`) }
			for _, m := range []fakeetcd.Method{fakeetcd.Get, fakeetcd.Watch} {
				o.c.Inject(m, fakeetcd.Fault{Err: errDenied, Match: ofA})
			}
			o.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
			time.Sleep(time.Second)
			before := opened()
			time.Sleep(time.Minute)
			require.Equal(t, before, opened())
		}
	})
}
