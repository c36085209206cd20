package lease_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// hold has the methods that the handles of all kinds share.
type hold interface {
	Context() context.Context
	Err() error
	Deadline() time.Time
	Unlock(ctx context.Context) error
}

// spot is a place in a queue.
type spot struct {
	queue  string
	shared bool
}

// kind is a kind of lock with its names.
type kind struct {
	spots     []spot // those of a tree from the root down
	of        int    // permits; 0: it is none
	wait, try func(context.Context, *lease.Session) (hold, error)
}

// kindsOf returns a lock of each kind that excludes the lock called name, by the name that hooks give it.
func kindsOf(name string, of int) map[string]kind {
	return map[string]kind{
		"lock " + name: {
			[]spot{{name, false}},
			0,
			func(ctx context.Context, s *lease.Session) (hold, error) { return s.Lock(ctx, name) },
			func(ctx context.Context, s *lease.Session) (hold, error) { return s.TryLock(ctx, name) },
		},
		"read lock " + name: {
			[]spot{{name, true}},
			0,
			func(ctx context.Context, s *lease.Session) (hold, error) { return s.RLock(ctx, name) },
			func(ctx context.Context, s *lease.Session) (hold, error) { return s.TryRLock(ctx, name) },
		},
		"lock set b," + name: {
			[]spot{{"b", false}, {name, false}},
			0,
			func(ctx context.Context, s *lease.Session) (hold, error) { return s.LockAll(ctx, "b", name, "b") },
			func(ctx context.Context, s *lease.Session) (hold, error) { return s.TryLockAll(ctx, "b", name, "b") },
		},
		"tree lock " + name + "/c": treeOf(name+"/c", spot{name, true}, spot{name + "/~c", false}),
		"permit " + name: {
			[]spot{{name, false}},
			of,
			func(ctx context.Context, s *lease.Session) (hold, error) { return s.Permit(ctx, name, of) },
			func(ctx context.Context, s *lease.Session) (hold, error) { return s.TryPermit(ctx, name, of) },
		},
	}
}

func treeOf(path string, spots ...spot) kind {
	return kind{
		spots, 0,
		func(ctx context.Context, s *lease.Session) (hold, error) { return s.LockTree(ctx, path) },
		func(ctx context.Context, s *lease.Session) (hold, error) { return s.TryLockTree(ctx, path) },
	}
}

// do takes the lock, calls fn and unlocks.
func (k kind) do(ctx context.Context, s *lease.Session, fn func()) error {
	l, err := k.wait(ctx, s)
	if err != nil {
		return err
	}
	fn()
	return l.Unlock(ctx)
}

// kinds has one lock of each kind that excludes the lock "a".
var kinds = kindsOf("a", 1)

func (e *env) tree(t *testing.T, path string) *lease.TreeLock {
	t.Helper()
	l, err := e.s.TryLockTree(t.Context(), path)
	require.NoError(t, err)
	return l
}

func (e *env) rlock(t *testing.T, name string) *lease.ReadLock {
	t.Helper()
	l, err := e.s.TryRLock(t.Context(), name)
	require.NoError(t, err)
	return l
}

// A handle of any kind is renewed with the lease and unlocked once. Trying to take such a lock again fails at once.
func TestKinds_life(t *testing.T) {
	for name, kind := range kinds {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			before := len(e.writes())
			l, err := kind.try(t.Context(), e.s)
			require.NoError(t, err)
			require.Len(t, e.writes()[before:], 1, "one transaction, whatever queues it enters")
			for _, at := range kind.spots {
				require.Len(t, e.inspect(t, at.queue).Holders, 1)
			}
			_, err = e.s.TryLock(t.Context(), "a")
			if name == "permit a" {
				require.NoError(t, err, "that lock blocks new permits only")
			} else {
				require.ErrorIs(t, err, lease.ErrLocked)
			}
			e.at(2 * third)
			require.NoError(t, l.Err())
			require.Equal(t, e.began.Add(2*third+usable), l.Deadline())
			require.NoError(t, l.Unlock(t.Context()))
			require.Equal(t, lease.ErrUnlocked, l.Err())
			require.Equal(t, lease.ErrUnlocked, context.Cause(l.Context()))
			require.ErrorIs(t, l.Unlock(t.Context()), lease.ErrUnlocked)
		})
	}
}

// The loss of any key ends the hold, whichever it is, and the cause names that key. Unlock reports it, also if it has
// not been noticed before, and releases the other keys, which nothing else does.
func TestKinds_loseAKey(t *testing.T) {
	for name, kind := range kinds {
		for _, noticed := range []bool{true, false} {
			bubbleOf(t, fmt.Sprint(name, " noticed ", noticed), func(t *testing.T, e *env) {
				for i, keys := 0, []string{""}; i < len(keys); i++ {
					l, err := kind.try(t.Context(), e.s)
					require.NoError(t, err)
					keys = e.keys("")
					if noticed {
						e.at(e.now() + time.Second)
					}
					require.True(t, e.srv.Delete(keys[i]))
					if noticed {
						synctest.Wait()
						require.Equal(t, keys[i], lossOf(t, context.Cause(l.Context()), lease.ReasonKeyDeleted).Key)
						require.Len(t, e.keys(""), len(keys)-1)
					}
					require.Equal(t, keys[i], lossOf(t, l.Unlock(t.Context()), lease.ReasonKeyDeleted).Key)
					e.at(e.now() + time.Second)
					require.Empty(t, e.keys(""))
				}
			})
		}
	}
}

// The first request is stuck, and the retry finds somebody else's key. When that is gone and the request arrives after
// all, its keys are deleted.
func TestKinds_lateRequestOfAKeyThatWasTaken(t *testing.T) {
	for name, kind := range kinds {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			var key string
			release := make(chan struct{})
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Late: true, Until: release, Match: func(call fakeetcd.Call) bool {
				for _, op := range call.Request.(*pb.TxnRequest).Success {
					key = cmp.Or(key, string(op.GetRequestPut().GetKey()))
				}
				return key != ""
			}})
			done := later(func() error { return kind.do(t.Context(), e.s, func() {}) })
			synctest.Wait()
			e.srv.Put(key, "by hand")
			e.at(30 * time.Second)
			require.True(t, e.srv.Delete(key))
			require.NoError(t, receive(t, done))
			close(release)
			e.at(time.Hour)
			require.Empty(t, e.keys(""))
		})
	}
}

// A hook that panics leaves no lock without an owner, and no place in a queue, not even in that of the session.
func TestHooks_thatPanic(t *testing.T) {
	for name, kind := range kinds {
		for _, hook := range []string{"Queued", "AcquireEnd"} {
			for _, sameSession := range []bool{false, true} {
				inBubble(t, fmt.Sprintf("%s, %s, behind its own session: %t", name, hook, sameSession), func(t *testing.T) {
					var armed atomic.Value
					armed.Store("")
					strike := func(name string) {
						if armed.CompareAndSwap(name, "") {
							panic("mine")
						}
					}
					e := start(t, lease.Options{Hooks: &lease.Hooks{
						Queued:     func(context.Context, lease.Acquisition, string) { strike("Queued") },
						AcquireEnd: func(context.Context, lease.Acquisition, lease.Acquired) { strike("AcquireEnd") },
					}})
					holder := e
					if !sameSession {
						holder = e.join(t)
					}
					l := holder.lock(t, "a")
					armed.Store(hook)
					time.AfterFunc(time.Second, func() { _ = l.Unlock(context.WithoutCancel(t.Context())) })
					run := func() error { return kind.do(t.Context(), e.s, func() {}) }
					require.PanicsWithValue(t, "mine", func() { _ = run() })
					<-l.Context().Done()
					synctest.Wait()
					require.Empty(t, e.keys(""))
					require.NoError(t, run())
					require.Equal(t, time.Second, e.now())
					require.NoError(t, e.s.Close(t.Context()))
				})
			}
		}
	}
}

// Nothing is sent for bad input.
func TestKinds_input(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		ctx := t.Context()
		before := len(e.c.Calls(fakeetcd.Txn))
		for _, err := range []error{
			e.s.Do(ctx, "a", nil), e.s.TryDo(ctx, "a", nil), e.s.RDo(ctx, "a", nil),
			e.s.DoAll(ctx, []string{"a"}, nil), e.s.DoTree(ctx, "a", nil), e.s.DoPermit(ctx, "a", 1, nil),
		} {
			require.EqualError(t, err, "lease: fn is nil, want a function")
		}
		for _, call := range []func(name string, opts ...lease.LockOption) error{
			func(name string, opts ...lease.LockOption) error { return second(e.s.Lock(ctx, name, opts...)) },
			func(name string, opts ...lease.LockOption) error { return second(e.s.TryLock(ctx, name, opts...)) },
			func(name string, opts ...lease.LockOption) error { return e.s.Do(ctx, name, nothing, opts...) },
			func(name string, opts ...lease.LockOption) error { return e.s.TryDo(ctx, name, nothing, opts...) },
			func(name string, opts ...lease.LockOption) error { return second(e.s.RLock(ctx, name, opts...)) },
			func(name string, opts ...lease.LockOption) error { return second(e.s.Permit(ctx, name, 1, opts...)) },
		} {
			require.EqualError(t, call(""), "lease: name is empty, want 1 to 1024 bytes")
			require.EqualError(t, call("a//b"), `lease: name "a//b" contains "//"`)
			for want, option := range map[string]lease.LockOption{
				"lease: WithMaxHold is -1s, want 0 (no bound) or more": lease.WithMaxHold(-time.Second),
				"lease: WithOwner has 4097 bytes, want 0 to 4096":      lease.WithOwner(strings.Repeat("o", 4097)),
				"lease: option 1 of 1 is nil, want a LockOption":       nil,
			} {
				require.EqualError(t, call("a", option), want)
			}
		}
		for _, of := range []int{0, -1, 1025} {
			require.EqualError(t, second(e.s.Permit(ctx, "a", of)), fmt.Sprintf("lease: of is %d, want 1 to 1024", of))
		}
		for path, want := range map[string]string{
			"":                             "lease: path is empty, want 1 to 1024 bytes",
			"a//b":                         `lease: path "a//b" contains "//"`,
			"a/~b":                         `lease: path "a/~b" has a part that begins with "~"`,
			strings.Repeat("a/", 64) + "a": "lease: path has 65 parts, want 1 to 64",
		} {
			require.EqualError(t, second(e.s.LockTree(ctx, path)), want)
		}
		var many []string
		for i := range 65 {
			many = append(many, fmt.Sprint(i))
		}
		for want, names := range map[string][]string{
			"lease: names has 0, want 1 to 64":                   nil,
			"lease: names has 65, want 1 to 64":                  many,
			`lease: name "a/" begins or ends with "/"`:           {"b", "a/"},
			"lease: name is empty, want 1 to 1024 bytes":         {"b", ""},
			"lease: name has 1025 bytes, want 1 to 1024":         {strings.Repeat("n", 1025)},
			`lease: name "a/~b" has a part that begins with "~"`: {"a/~b"},
		} {
			require.EqualError(t, second(e.s.LockAll(ctx, names...)), want)
			require.EqualError(t, second(e.s.TryLockAll(ctx, names...)), want)
			require.EqualError(t, e.s.DoAll(ctx, names, nothing), want)
		}
		require.Len(t, e.c.Calls(fakeetcd.Txn), before)
		require.NoError(t, e.tree(t, strings.Repeat("a/", 63)+"a").Unlock(ctx))
	})
}
