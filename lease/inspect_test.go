package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func (e *env) inspect(t *testing.T, name string) lease.Queue {
	t.Helper()
	q, err := lease.Inspect(t.Context(), e.c.Client, name)
	require.NoError(t, err)
	require.Equal(t, name, q.Name)
	return q
}

// shape renders a queue as "holders | waiters", each with its class and owner.
func shape(q lease.Queue) string {
	var parts []string
	add := func(list []lease.Contender) {
		for _, c := range list {
			parts = append(parts, strings.TrimSuffix(string(c.Class)+":"+c.Owner, ":"))
		}
	}
	add(q.Holders)
	parts = append(parts, "|")
	add(q.Waiters)
	return strings.Join(parts, " ")
}

func (e *env) put(t *testing.T, key, value string, id clientv3.LeaseID) {
	t.Helper()
	_, err := e.c.Put(t.Context(), key, value, clientv3.WithLease(id))
	require.NoError(t, err)
}

// Each contender is shown in its place, with its class and the text in its key. Nested names and planted keys are not
// shown.
func TestInspect_showsWhoHoldsAndWhoWaits(t *testing.T) {
	bubbleWith(t, lease.Options{Owner: "first", TTL: 20 * time.Second}, func(t *testing.T, e *env) {
		require.Equal(t, "|", shape(e.inspect(t, "a")))
		l := e.lock(t, "a")
		e.srv.Put("a/planted", "")
		e.srv.Put("a/5", "of no lease")
		nested := e.lock(t, "a/b")
		other := open(t, e.srv, lease.Options{Owner: "second"})
		waiter := other.wait(t.Context(), "a")
		e.at(5 * time.Second)

		q := e.inspect(t, "a")
		require.Equal(t, "exclusive:first | exclusive:second", shape(q))
		require.Equal(t, lease.Contender{
			Key: l.Key(), Owner: "first", Class: lease.ClassExclusive, Revision: l.Token().Revision(),
			Lease: e.s.Status().LeaseID, TTL: 15 * time.Second,
		}, q.Holders[0])
		require.Equal(t, other.s.Status().LeaseID, q.Waiters[0].Lease)
		require.Equal(t, 25*time.Second, q.Waiters[0].TTL)
		require.Equal(t, nested.Key(), e.inspect(t, "a/b").Holders[0].Key)

		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, "exclusive:second |", shape(e.inspect(t, "a")))
		require.NoError(t, receive(t, waiter).lock.Unlock(t.Context()))
		require.Equal(t, "|", shape(e.inspect(t, "a")))
	})
}

func TestInspect_readersHoldUpToTheFirstWriter(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		id := e.s.Status().LeaseID
		hex := fmt.Sprintf("%x", int64(id))
		e.put(t, "a/r"+hex+"-1", "r1", id)
		e.put(t, "a/s"+hex+"-1", "s1", id)
		e.put(t, "a/r"+hex+"-2", "r2", id)
		e.put(t, "a/"+hex, "w", id)
		e.put(t, "a/r"+hex+"-3", "r3", id)
		e.put(t, "a/g"+hex+"-1", "g1", id)
		require.Equal(t, "reader:r1 reader:r2 | beside:s1 exclusive:w reader:r3 other:g1", shape(e.inspect(t, "a")))
		e.put(t, "b/g"+hex+"-1", "g1", id)
		e.put(t, "b/r"+hex+"-1", "r1", id)
		require.Equal(t, "other:g1 | reader:r1", shape(e.inspect(t, "b")))
	})
}

func TestInspect_semaphores(t *testing.T) {
	bubbleWith(t, lease.Options{Owner: "session"}, func(t *testing.T, e *env) {
		permits := map[string]*lease.Permit{}
		for _, who := range []string{"one", "two"} {
			p, err := e.s.TryPermit(t.Context(), "a", 2, lease.WithOwner(who))
			require.NoError(t, err)
			permits[who] = p
		}
		go func() { _ = e.s.DoPermit(t.Context(), "a", 2, nothing, lease.WithOwner("three")) }()
		synctest.Wait()
		q := e.inspect(t, "a")
		require.Equal(t, "slot:one slot:two | slot:three", shape(q))
		require.Equal(t, permits["two"].Token().Revision(), q.Holders[1].Revision)

		own := e.inspect(t, permits["one"].Name())
		require.Equal(t, "slot:one |", shape(own), "a slot by itself")

		// etcd's own locks of the name wait for the permits, ours do not; a lock of a slot waits for the slot's holder.
		etcds := start(t, lease.Options{}) // for a lease
		id, err := e.c.Grant(t.Context(), 60)
		require.NoError(t, err)
		hex := fmt.Sprintf("%x", int64(id.ID))
		e.put(t, permits["one"].Name()+"/"+hex, "drain", id.ID)
		require.NoError(t, permits["two"].Unlock(t.Context()))
		synctest.Wait()
		require.Equal(t, "slot:one | exclusive:drain", shape(e.inspect(t, "a")), "the third had its turn")
		e.put(t, "a/"+hex, "etcdctl", id.ID)
		require.Equal(t, "slot:one | exclusive:drain exclusive:etcdctl", shape(e.inspect(t, "a")))
		_, err = e.c.Delete(t.Context(), "a/"+hex)
		require.NoError(t, err)
		l := granted(t, e.wait(t.Context(), "a", lease.WithOwner("ours"))).lock
		require.Equal(t, "slot:one exclusive:ours | exclusive:drain", shape(e.inspect(t, "a")))
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, permits["one"].Unlock(t.Context()))
		require.Equal(t, "exclusive:drain |", shape(e.inspect(t, "a")))
		require.NoError(t, etcds.s.Close(t.Context()))
	})
}

// Each lease is asked for once, however many keys it has, and may be gone by then.
func TestInspect_leases(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for range 10 {
			e.rlock(t, "a")
		}
		other := e.join(t)
		other.rlock(t, "a")
		looking := e.srv.NewClient(t.Context())
		looking.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Times: 1, OnRequest: func() {
			_ = e.srv.Revoke(e.s.Status().LeaseID)
			_ = e.srv.Revoke(other.s.Status().LeaseID)
		}})
		q, err := lease.Inspect(t.Context(), looking.Client, "a")
		require.NoError(t, err)
		require.Len(t, q.Holders, 11)
		require.Len(t, looking.Calls(fakeetcd.TimeToLive), 2)
		gone := 0
		for _, c := range q.Holders {
			require.GreaterOrEqual(t, c.TTL, time.Duration(0))
			if c.TTL == 0 {
				gone++
			}
		}
		require.NotZero(t, gone)
	})
}

// If the revision is compacted between two requests of one Inspect, it shows a later revision.
func TestInspect_compactedMeanwhile(t *testing.T) {
	bubbleWith(t, lease.Options{Owner: "me"}, func(t *testing.T, e *env) {
		e.lock(t, "a")
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, OnRequest: func() {
			_ = e.srv.Compact(e.srv.Put("elsewhere", ""))
		}})
		require.Equal(t, "exclusive:me |", shape(e.inspect(t, "a")))
	})
}

func (e *env) list(t *testing.T, prefix string) (all []lease.Queue) {
	t.Helper()
	for q, err := range lease.List(t.Context(), e.c.Client, prefix) {
		require.NoError(t, err)
		all = append(all, q)
	}
	return all
}

// byName returns the result of Inspect without the fields that List does not read.
func (e *env) byName(t *testing.T, name string) lease.Queue {
	t.Helper()
	q := e.inspect(t, name)
	for _, list := range [...][]lease.Contender{q.Holders, q.Waiters} {
		for i := range list {
			list[i].Owner, list[i].TTL = "", 0
		}
	}
	return q
}

// Whatever the names are, nested and beside each other, List shows each queue once and as Inspect does.
func TestList_agreesWithInspect(t *testing.T) {
	// Of the first two, the inner one opens before the outer one, of which there is only a slot.
	names := []string{
		"c", "c/~slot",
		"a", "a/b", "a/b/c", "a/1", "a/1f", "a/r1", "a/z", "a/~b", "a/~b/~c", "a/~slot", "a/~slot/~1", "a!", "a0", "ab", "b", "b/é", "é", "é/1",
	}
	slots := []string{"a/~slot/0", "a/~slot/1", "a/~slot/10", "a/b/~slot/2", "ab/~slot/0"}
	for range 20 {
		bubble(t, func(t *testing.T, e *env) {
			id := e.s.Status().LeaseID
			for i := range 400 {
				name := names[2+rand.IntN(len(names)-2)]
				suffix := fmt.Sprintf("%x-n%d", int64(id), i)
				switch rand.IntN(10) {
				case 0:
					e.srv.Put(name+"/"+[]string{"7", "cafe", "no lease", "-", "~x", "r"}[rand.IntN(6)], "foreign")
				case 1, 2:
					e.put(t, name+"/"+string("rgqsz"[rand.IntN(5)])+suffix, "", id)
				case 3:
					e.put(t, slots[rand.IntN(len(slots))]+"/"+strings.Replace(suffix, "-", "-of3-", 1), "", id)
				case 4:
					e.put(t, slots[rand.IntN(len(slots))]+"/"+suffix, "", id)
				case 5:
					e.put(t, name+"/"+strings.Replace(suffix, "-", "-of3-", 1), "", id)
				default:
					e.put(t, name+"/"+suffix, "", id)
				}
			}
			for _, form := range []string{"c/~slot/%x-n", "c/~slot/9/%x-of10-n", "c/~slot/r%x-n"} {
				e.put(t, fmt.Sprintf(form, int64(id)), "", id)
			}
			for _, prefix := range []string{"", "a", "a/", "a/1", "a/b", "a/b/", "a/~", "b", "c", "é", "nothing"} {
				var want []lease.Queue
				for _, name := range names {
					if q := e.byName(t, name); strings.HasPrefix(name, prefix) && len(q.Holders)+len(q.Waiters) > 0 {
						want = append(want, q)
					}
				}
				for _, name := range slots {
					of, _, _ := strings.Cut(name, "/~slot")
					if !strings.HasPrefix(name, prefix) || strings.HasPrefix(of, prefix) {
						continue
					}
					// A slot is its own queue if the semaphore's name is not listed.
					if q := e.byName(t, name); len(q.Holders) > 0 {
						want = append(want, q)
					}
				}
				got := e.list(t, prefix)
				byName := func(a, b lease.Queue) int { return strings.Compare(a.Name, b.Name) }
				slices.SortFunc(got, byName)
				slices.SortFunc(want, byName)
				require.Equal(t, want, got, prefix)
			}
		})
	}
}

// List reads no further than the consumer wants, and shows everything as of the first page.
func TestList_atOneRevision(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		id := e.s.Status().LeaseID
		put := func(from, to int, name string) {
			for i := from; i < to; i++ {
				e.put(t, fmt.Sprintf("%s%03d/%x", name, i, int64(id)), "", id)
			}
		}
		put(0, 300, "n")
		reads := func() int { return len(e.c.Calls(fakeetcd.Get)) }
		before := reads()
		for _, err := range lease.List(t.Context(), e.c.Client, "n") {
			require.NoError(t, err)
			break
		}
		require.Equal(t, before+1, reads())

		look := func(meanwhile func()) (n int) {
			for _, err := range lease.List(t.Context(), e.c.Client, "n") {
				require.NoError(t, err)
				if n++; n == 1 {
					meanwhile()
				}
			}
			return n
		}
		require.Equal(t, 300, look(func() { put(300, 310, "n") }))
		require.Equal(t, 320, look(func() {
			put(310, 320, "n")
			require.NoError(t, e.srv.Compact(e.srv.Rev()))
		}), "or else as it is from then on")
	})
}

// What needs a client alone refuses bad input before it sends anything, reports a failure that will not pass, and
// retries the others until its context ends.
func TestObservers_errors(t *testing.T) {
	for verb, call := range map[string]func(context.Context, *clientv3.Client, string) error{
		"inspect": func(ctx context.Context, c *clientv3.Client, name string) error {
			return second(lease.Inspect(ctx, c, name))
		},
		"list": func(ctx context.Context, c *clientv3.Client, prefix string) (err error) {
			for _, last := range lease.List(ctx, c, prefix) {
				err = last
			}
			return err
		},
		"watch": func(ctx context.Context, c *clientv3.Client, name string) (err error) {
			for _, last := range lease.Watch(ctx, c, name) {
				err = last
			}
			return err
		},
		"release": func(ctx context.Context, c *clientv3.Client, name string) error {
			return lease.Release(ctx, c, name, lease.ReleaseOptions{})
		},
	} {
		bubbleOf(t, verb, func(t *testing.T, e *env) {
			ctx, client := timeout(t, time.Hour), e.c.Client
			sent := len(e.c.Calls(fakeetcd.Any))
			require.EqualError(t, call(ctx, nil, "a"), "lease: client is nil, want an etcd client")
			if verb == "list" {
				require.EqualError(t, call(ctx, client, "\xff"), `lease: prefix is "\xff", want UTF-8 without NUL`)
				require.EqualError(t, call(ctx, client, strings.Repeat("a", 2305)), "lease: prefix has 2305 bytes, want 0 to 2304")
			} else {
				require.EqualError(t, call(ctx, client, ""), "lease: name is empty, want 1 to 2304 bytes")
				require.ErrorContains(t, call(ctx, client, "a/~b/"), `lease: name "a/~b/" ends with "/"`)
			}
			require.Len(t, e.c.Calls(fakeetcd.Any), sent, "nothing is sent")

			e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, Err: errDenied})
			require.ErrorContains(t, call(ctx, client, "a"), "lease: "+verb+` "a": etcdserver: permission denied`)
			e.c.Cut()
			err := call(timeout(t, time.Minute), client, "a")
			if verb == "watch" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.GreaterOrEqual(t, e.now(), time.Minute)
			e.c.Restore()
		})
	}
}

// Whatever prefix a session has, its locks are found by their full names.
func TestObservers_anyPrefix(t *testing.T) {
	for _, prefix := range []string{"", "jobs/", "/jobs/", "/", "jobs//", strings.Repeat("p", 1024)} {
		inBubble(t, fmt.Sprintf("%.10q", prefix), func(t *testing.T) {
			e := start(t, lease.Options{Prefix: prefix})
			name := strings.Repeat("n", 1024)
			full := prefix + name
			l := e.lock(t, name)
			require.Len(t, e.inspect(t, full).Holders, 1)
			for q, err := range lease.Watch(t.Context(), e.c.Client, full) {
				require.NoError(t, err)
				require.Len(t, q.Holders, 1)
				break
			}
			n := 0
			for q, err := range lease.List(t.Context(), e.c.Client, prefix) {
				require.NoError(t, err)
				require.Equal(t, full, q.Name)
				n++
			}
			require.Equal(t, 1, n)
			e.release(t, full, lease.ReleaseOptions{})
			e.at(time.Second)
			require.ErrorIs(t, l.Err(), lease.ErrAskedToRelease)
			require.NoError(t, l.Unlock(t.Context()))

			// The names of slots and of a tree's nodes are longer.
			permit, node := e.permit(t, name, 1024), e.tree(t, strings.Repeat("n/", 63)+name[:1024-2*63])
			for _, ctx := range []context.Context{permit.Context(), node.Context()} {
				full, _ := fence.LockFromContext(ctx)
				require.Len(t, e.inspect(t, full).Holders, 1)
				require.Len(t, e.list(t, full), 1)
			}
		})
	}
}
