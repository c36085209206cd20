package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func (e *env) release(t *testing.T, name string, opts lease.ReleaseOptions) {
	t.Helper()
	require.NoError(t, lease.Release(t.Context(), e.c.Client, name, opts))
}

// For every kind of lock, by each of its names: the context ends, the lock stays held, and Unlock succeeds.
func TestRelease_asksAHolder(t *testing.T) {
	for name, kind := range kinds {
		for _, at := range kind.spots {
			for _, age := range []time.Duration{0, 100 * time.Millisecond, time.Second, time.Minute} {
				inBubble(t, fmt.Sprint(name, " by ", at.queue, " at ", age), func(t *testing.T) {
					e := start(t, lease.Options{Owner: "me"})
					bystander := e.lock(t, "bystander")
					l, err := kind.try(t.Context(), e.s)
					require.NoError(t, err)
					keys := e.keys("")
					e.at(age)

					e.join(t).release(t, at.queue, lease.ReleaseOptions{})
					e.at(age + 300*time.Millisecond)
					require.Equal(t, lease.ErrAskedToRelease, context.Cause(l.Context()))
					require.Equal(t, lease.ErrAskedToRelease, l.Err())
					require.Equal(t, keys, e.keys(""), "still held")
					require.Equal(t, "me", e.inspect(t, at.queue).Holders[0].Owner)
					e.release(t, at.queue, lease.ReleaseOptions{})
					e.at(age + time.Minute)
					require.Equal(t, keys, e.keys(""))
					require.NoError(t, l.Unlock(t.Context()))
					require.Equal(t, []string{bystander.Key()}, e.keys(""))
					requireLive(t, bystander)
				})
			}
		}
	}
}

// A holder that is cut off learns of the request when it reconnects. If its deadline passes first, it reports the loss.
func TestRelease_asked_cutOff(t *testing.T) {
	for _, back := range []time.Duration{15 * time.Second, time.Minute} {
		bubbleOf(t, back.String(), func(t *testing.T, e *env) {
			l, other := e.lock(t, "a"), e.join(t)
			e.at(10 * time.Second)
			e.c.Cut()
			other.release(t, "a", lease.ReleaseOptions{})
			e.at(15 * time.Second)
			require.NoError(t, l.Err())
			e.at(back)
			e.c.Restore()
			e.at(back + 2*ttl)
			if back > usable {
				requireLost(t, l.Err(), lease.ReasonDeadlinePassed)
				return
			}
			require.Equal(t, lease.ErrAskedToRelease, l.Err())
			require.NoError(t, l.Unlock(t.Context()))
		})
	}
}

// A waiter that is asked to release before it knows that it is first gives up, and the next waiter gets the lock. In the same
// session that one must not inherit the key, in which the request stands.
func TestRelease_asked_beforeItKnows(t *testing.T) {
	for name, sameSession := range map[string]bool{"next in another session": false, "next in the same session": true} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			first, other := e.lock(t, "a"), e.join(t)
			ctx, giveUp := context.WithCancel(t.Context())
			before := e.join(t).wait(ctx, "a")
			waiter := other.wait(t.Context(), "a")
			session := other
			if !sameSession {
				session = e.join(t)
			}
			next := session.wait(t.Context(), "a")
			e.at(time.Second)
			giveUp()
			require.ErrorIs(t, receive(t, before).err, context.Canceled)
			other.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 4 * time.Second}) // delays the read of who is ahead
			require.NoError(t, first.Unlock(t.Context()))
			synctest.Wait()
			e.release(t, "a", lease.ReleaseOptions{})
			require.ErrorIs(t, receive(t, waiter).err, lease.ErrAskedToRelease)
			got := granted(t, next)
			time.Sleep(time.Minute)
			require.NoError(t, got.lock.Err(), "it was not asked")
		})
	}
}

// The request stands in the key for people to read, behind the owner's text, and only once.
func TestRelease_asked_isInTheKey(t *testing.T) {
	bubbleWith(t, lease.Options{Owner: "me"}, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, Match: writes})
		e.release(t, "a", lease.ReleaseOptions{})
		e.release(t, "a", lease.ReleaseOptions{Revision: l.Token().Revision()})
		kv := e.srv.Keys("a/")[0]
		require.Equal(t, fmt.Sprintf("me\n(asked to release %d)", l.Token()), string(kv.Value))
		require.EqualValues(t, 2, kv.Version)
		require.EqualValues(t, e.s.Status().LeaseID, kv.Lease)
		_, err := e.s.TryLock(t.Context(), "a")
		var locked *lease.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "me", locked.Owner)
	})
}

// The line contains the key's revision, so no text of an owner is taken for a request.
func TestRelease_asked_notByAText(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		guess := e.srv.Rev() + 2
		l := e.lock(t, "a", lease.WithOwner(fmt.Sprintf("me\n(asked to release %d)", guess)))
		_, err := e.c.Put(t.Context(), l.Key(), "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
		require.NoError(t, err)
		e.at(time.Hour)
		require.NoError(t, l.Err())
	})
}

func TestRelease_now(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l, bystander, other := e.lock(t, "a"), e.lock(t, "b"), e.join(t)
		next := other.wait(t.Context(), "a")
		e.at(time.Second)
		looking := e.srv.NewClient(t.Context())
		looking.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, Match: writes})
		require.NoError(t, lease.Release(t.Context(), looking.Client, "a", lease.ReleaseOptions{Mode: lease.ReleaseNow}))
		got := granted(t, next)
		synctest.Wait()
		requireLive(t, bystander)
		requireLost(t, l.Err(), lease.ReasonKeyDeleted)
		e.at(time.Hour)
		require.Contains(t, e.leaseIDs(), e.s.Status().LeaseID)
		requireLive(t, got.lock)
	})
}

// Release chooses the holder before it writes: a later holder of the very same key keeps it, and is not asked.
func TestRelease_leavesTheNextHolder(t *testing.T) {
	for _, mode := range []lease.ReleaseMode{lease.ReleaseNow, lease.ReleaseAsked} {
		bubbleOf(t, mode.String(), func(t *testing.T, e *env) {
			l, looking := e.lock(t, "a"), e.srv.NewClient(t.Context())
			var next *lease.Lock
			looking.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: writes, OnRequest: func() {
				_ = l.Unlock(t.Context())
				next, _ = e.s.TryLock(t.Context(), "a")
			}})
			require.NoError(t, lease.Release(t.Context(), looking.Client, "a", lease.ReleaseOptions{Mode: mode}))
			require.Equal(t, l.Key(), next.Key(), "the very same key")
			require.Len(t, e.keys("a"), 1)
			require.EqualValues(t, 1, e.srv.Keys("a/")[0].Version)
			e.at(time.Minute)
			requireLive(t, next)
		})
	}
}

// Whichever request etcd refuses, Release returns that, and the lock is held.
func TestRelease_isRefused(t *testing.T) {
	for _, mode := range []lease.ReleaseMode{lease.ReleaseAsked, lease.ReleaseWait, lease.ReleaseNow} {
		for nth, refused := 1, true; refused && nth < 9; nth++ { // ReleaseWait asks again and again
			bubbleOf(t, fmt.Sprintf("mode %d, request %d", mode, nth), func(t *testing.T, e *env) {
				l := e.lock(t, "a")
				c := e.srv.NewClient(t.Context())
				sent := 0
				c.Inject(fakeetcd.Any, fakeetcd.Fault{Times: 1, Err: errDenied, Match: func(fakeetcd.Call) bool {
					sent++
					return sent == nth
				}})
				err := lease.Release(timeout(t, 10*time.Second), c.Client, "a", lease.ReleaseOptions{Mode: mode})
				if refused = sent >= nth; !refused {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
				synctest.Wait()
				requireLive(t, l)
			})
		}
	}
}

func TestRelease_errors(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		ctx, client := t.Context(), e.c.Client
		sent := len(e.c.Calls(fakeetcd.Any))
		require.EqualError(t, lease.Release(ctx, client, "a", lease.ReleaseOptions{Mode: 3}),
			"lease: ReleaseOptions.Mode is 3, want ReleaseAsked (0), ReleaseWait (1) or ReleaseNow (2)")
		require.EqualError(t, lease.Release(ctx, client, "a", lease.ReleaseOptions{Revision: -1}),
			"lease: ReleaseOptions.Revision is -1, want a holder's, or 0")
		require.Len(t, e.c.Calls(fakeetcd.Any), sent, "nothing is sent")

		err := lease.Release(ctx, client, "a", lease.ReleaseOptions{})
		require.ErrorIs(t, err, lease.ErrNotHeld)
		require.EqualError(t, err, `lease: release "a": lease: not held`)
		r1, r2, other := e.rlock(t, "a"), e.rlock(t, "a"), e.join(t)
		waiter := other.wait(ctx, "a")
		before := e.srv.Rev()
		for _, mode := range []lease.ReleaseMode{lease.ReleaseAsked, lease.ReleaseWait, lease.ReleaseNow} {
			err = lease.Release(ctx, client, "a", lease.ReleaseOptions{Mode: mode})
			require.EqualError(t, err, fmt.Sprintf(`lease: release "a": 2 hold it: name one by ReleaseOptions.Revision, such as %d`, r1.Token()))
			w := e.inspect(t, "a").Waiters[0].Revision
			err = lease.Release(ctx, client, "a", lease.ReleaseOptions{Mode: mode, Revision: w})
			require.ErrorIs(t, err, lease.ErrNotHeld)
			require.ErrorContains(t, err, "that one waits")
			err = lease.Release(ctx, client, "a", lease.ReleaseOptions{Mode: mode, Revision: 1})
			require.ErrorIs(t, err, lease.ErrNotHeld)
			require.ErrorContains(t, err, "with revision 1, but with")
		}
		require.Equal(t, before, e.srv.Rev(), "nothing was written")

		e.release(t, "a", lease.ReleaseOptions{Revision: int64(r2.Token())})
		e.at(time.Second)
		require.Equal(t, lease.ErrAskedToRelease, r2.Err())
		require.NoError(t, r1.Err())
		require.NoError(t, r2.Unlock(ctx))
		e.release(t, "a", lease.ReleaseOptions{})
		e.at(2 * time.Second)
		require.Equal(t, lease.ErrAskedToRelease, r1.Err())
		require.NoError(t, r1.Unlock(ctx))
		require.NoError(t, receive(t, waiter).err)

		e.put(t, fmt.Sprintf("b/%x", int64(e.s.Status().LeaseID)), "", e.s.Status().LeaseID)
		require.ErrorContains(t, lease.Release(ctx, client, "b", lease.ReleaseOptions{}), "of etcd's own packages and cannot be asked")
		e.release(t, "b", lease.ReleaseOptions{Mode: lease.ReleaseNow})
		require.Empty(t, e.keys("b"))
		require.Equal(t, "asked wait now ReleaseMode(3)", fmt.Sprint(lease.ReleaseAsked, " ", lease.ReleaseWait, " ", lease.ReleaseNow, " ", lease.ReleaseMode(3)))
	})
}

// Release may race with the holder's Unlock, a new holder of the very same key, or a holder that is cut off: it touches
// nothing but the hold that was named.
func TestRelease_nothingButWhatWasNamed(t *testing.T) {
	trials := 10_000
	if fakeetcd.RaceDetector {
		trials = 1000
	}
	const perServer = 100
	for range trials / perServer {
		bubble(t, func(t *testing.T, e *env) {
			other, looking := e.join(t), e.srv.NewClient(t.Context())
			bystander := e.lock(t, "bystander")
			soon := func() time.Duration { return rand.N(4 * time.Millisecond) }
			for i := range perServer {
				name := "n" + strconv.Itoa(i)
				l := e.lock(t, name)
				if rand.IntN(2) == 0 {
					time.Sleep(time.Second) // its key is watched
				}
				waiting := []<-chan acquired{other.wait(t.Context(), name)}
				if rand.IntN(2) == 0 { // in the session: it gets the lock by a hand-over
					waiting = append(waiting, e.wait(t.Context(), name))
				}
				for _, c := range []*fakeetcd.Client{e.c, other.c, looking} {
					c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: soon(), After: soon(), Twice: rand.IntN(4) == 0, Match: writes, Times: 2})
				}
				if rand.IntN(2) == 0 {
					looking.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, After: soon(), Match: writes})
				}
				mode := []lease.ReleaseMode{lease.ReleaseNow, lease.ReleaseAsked, lease.ReleaseNow}[i%3]
				released := later(func() error {
					time.Sleep(soon())
					return lease.Release(t.Context(), looking.Client, name, lease.ReleaseOptions{Mode: mode, Revision: l.Token().Revision()})
				})
				cut := rand.IntN(4) == 0
				if cut {
					time.Sleep(soon())
					e.c.Cut()
				}
				unlocked := later(func() error {
					time.Sleep(soon())
					return l.Unlock(t.Context())
				})
				if cut {
					time.Sleep(5 * time.Second)
					e.c.Restore()
				}
				if err := receive(t, unlocked); err != nil {
					requireLost(t, err, lease.ReasonKeyDeleted)
				}
				if err := receive(t, released); err != nil {
					require.ErrorIs(t, err, lease.ErrNotHeld)
				}
				for _, c := range []*fakeetcd.Client{e.c, other.c, looking} {
					c.Reset()
				}
				for _, next := range waiting {
					got := granted(t, next)
					time.Sleep(time.Second) // its guard has noticed anything that happened to its key
					require.NoError(t, got.lock.Err())
					require.NoError(t, got.lock.Unlock(t.Context()))
				}
				require.NoError(t, bystander.Err())
			}
			require.Len(t, e.srv.Leases(), 2)
		})
	}
}

// A set that waits for one name already holds the others, as their waiters see it: asked for one, it gives up all.
func TestRelease_asked_aSetThatWaits(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.join(t)
		b := e.lock(t, "b")
		got := later(func() error { return second(other.s.LockAll(t.Context(), "a", "b")) })
		synctest.Wait()
		next := e.wait(t.Context(), "a")
		e.at(time.Second)
		e.release(t, "a", lease.ReleaseOptions{})
		require.ErrorIs(t, receive(t, got), lease.ErrAskedToRelease)
		require.NoError(t, receive(t, next).err)
		e.at(time.Minute)
		require.Equal(t, []string{b.Key()}, e.keys("b"))
		requireLive(t, b)
	})
}

func TestRelease_waits(t *testing.T) {
	wait := lease.ReleaseOptions{Mode: lease.ReleaseWait}
	for name, end := range map[string]func(*env, *lease.Lock){
		"unlocked":            func(_ *env, l *lease.Lock) { _ = l.Unlock(l.Context()) },
		"cut off":             func(e *env, _ *lease.Lock) { e.c.Cut() },
		"revoked":             func(e *env, _ *lease.Lock) { _ = e.srv.Revoke(e.s.Status().LeaseID) },
		"deleted":             func(e *env, l *lease.Lock) { e.srv.Delete(l.Key()) },
		"taken off its lease": func(e *env, l *lease.Lock) { e.srv.Put(l.Key(), "") },
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l, looking := e.lock(t, "a"), e.srv.NewClient(t.Context())
			require.ErrorIs(t, lease.Release(timeout(t, time.Hour), looking.Client, "a", wait), context.DeadlineExceeded)
			requireLive(t, l)
			began, done := time.Now(), later(func() error { return lease.Release(t.Context(), looking.Client, "a", wait) })
			synctest.Wait()
			end(e, l)
			require.NoError(t, receive(t, done))
			latest := time.Second
			if name == "cut off" {
				latest += ttl
			}
			require.LessOrEqual(t, time.Since(began), latest)
			for _, call := range looking.Calls(fakeetcd.Any) {
				require.False(t, writes(call), "it writes nothing")
			}
		})
	}
}

// oblivious is a member that knows no lease.
type oblivious struct{ clientv3.Lease }

func (oblivious) TimeToLive(context.Context, clientv3.LeaseID, ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return &clientv3.LeaseTimeToLiveResponse{TTL: -1}, nil
}

// A lease that one member does not know may still live. Only if the cluster does not know it, its key is deleted, and
// no other key.
func TestRelease_waits_keyWithoutItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l, bystander, looking := e.lock(t, "a"), e.lock(t, "b"), e.srv.NewClient(t.Context())
		looking.Lease = oblivious{looking.Lease}
		wait := lease.ReleaseOptions{Mode: lease.ReleaseWait}
		require.ErrorIs(t, lease.Release(timeout(t, time.Minute), looking.Client, "a", wait), context.DeadlineExceeded)
		requireLive(t, l)

		looking.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: puts, Err: rpctypes.ErrGRPCLeaseNotFound})
		require.NoError(t, lease.Release(t.Context(), looking.Client, "a", wait))
		require.Empty(t, e.keys("a"))
		requireLive(t, bystander)
	})
}
