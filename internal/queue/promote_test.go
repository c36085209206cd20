package queue_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

func (e *env) promote(ctx context.Context, owner queue.Entry, value string) <-chan outcome[queue.Entry] {
	return inBackground(e, func() (queue.Entry, error) { return e.Promote(ctx, owner, value) })
}

// again has an entry step back, as the value given.
func (e *env) again(t *testing.T, entry queue.Entry, value string) queue.Entry {
	t.Helper()
	ahead, err := e.Ahead(t.Context(), entry)
	require.NoError(t, err)
	next := e.entry(queue.CandidateMark(0) + value + fmt.Sprint(e.srv.Rev()))
	done, entered, _, err := e.StepBack(t.Context(), entry, next, ahead, value)
	require.NoError(t, err)
	require.True(t, done)
	return entered
}

func TestQueue_Promote(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		leader := e.stand(t, 0, "leader")
		one, two := e.stand(t, 9, "one"), e.stand(t, 0, "two")
		three := e.stand(t, 0, "three")
		e.stand(t, 0, "behind")
		got := e.promote(t.Context(), leader, "three")
		require.ElementsMatch(t, []string{"one", "two"}, e.touched())
		e.again(t, one, "one")
		synctest.Wait()
		requirePending(t, got)
		e.at(time.Second)
		e.again(t, two, "two")
		next := receive(t, got)
		require.NoError(t, next.err)
		require.Equal(t, three, next.val)
		require.Equal(t, time.Second, next.at)
		require.Equal(t, []string{"leader", "three", "behind", "one", "two"}, e.order(t))

		// It stands right behind the owner: nobody needs to be asked.
		rev := e.srv.Rev()
		again, err := e.Promote(t.Context(), leader, "three")
		require.NoError(t, err)
		require.Equal(t, three, again)
		require.Equal(t, rev, e.srv.Rev())
	})
}

// The first of several with the value is meant, and the owner is none of them.
func TestQueue_Promote_sameValue(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		leader := e.stand(t, 0, "v")
		_, err := e.Promote(t.Context(), leader, "v")
		require.ErrorIs(t, err, queue.ErrNoCandidate)
		enter := func(suffix string) queue.Entry {
			entry, _, err := e.Enter(t.Context(), e.entry(queue.CandidateMark(0)+suffix), "v", false)
			require.NoError(t, err)
			return entry
		}
		first := enter("1")
		enter("0")
		next, err := e.Promote(t.Context(), leader, "v")
		require.NoError(t, err)
		require.Equal(t, first, next)
		require.Empty(t, e.touched())
	})
}

func TestQueue_Promote_cannot(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*testing.T, *env)
		want   error
	}{
		"nobody waits":  {func(*testing.T, *env) {}, queue.ErrNoCandidate},
		"another waits": {func(t *testing.T, e *env) { t.Helper(); e.stand(t, 0, "other") }, queue.ErrNoCandidate},
		"no contender": {func(_ *testing.T, e *env) {
			e.srv.Put("a/stray", "us")
			e.srv.Put("a/nested/1", "us")
		}, queue.ErrNoCandidate},
		"behind a lock": {func(t *testing.T, e *env) {
			t.Helper()
			e.stand(t, 0, "other")
			e.enter(t, "lock")
			e.stand(t, 0, "us")
		}, queue.ErrBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				leader := e.stand(t, 0, "leader")
				tc.before(t, e)
				rev := e.srv.Rev()
				_, err := e.Promote(t.Context(), leader, "us")
				require.ErrorIs(t, err, tc.want)
				require.Equal(t, rev, e.srv.Rev(), "nobody is asked")
			})
		})
	}
}

// Whom it waits for changes: the candidate itself steps back, leaves, or is blocked.
func TestQueue_Promote_meanwhile(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*testing.T, *env, queue.Entry)
		want error
	}{
		"steps back": {do: func(t *testing.T, e *env, us queue.Entry) { t.Helper(); e.again(t, us, "us") }},
		"leaves":     {do: func(_ *testing.T, e *env, us queue.Entry) { e.srv.Delete(us.Key) }, want: queue.ErrNoCandidate},
		"is blocked": {do: func(t *testing.T, e *env, us queue.Entry) {
			t.Helper()
			e.enter(t, "lock")
			e.again(t, us, "us")
		}, want: queue.ErrBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				leader, other, us := e.stand(t, 0, "leader"), e.stand(t, 0, "other"), e.stand(t, 0, "us")
				got := e.promote(t.Context(), leader, "us")
				tc.do(t, e, us)
				e.srv.Delete(other.Key)
				next := receive(t, got)
				if tc.want != nil {
					require.ErrorIs(t, next.err, tc.want)
					return
				}
				require.NoError(t, next.err)
				require.Equal(t, e.srv.Keys(next.val.Key)[0].CreateRevision, next.val.Rev)
				require.Equal(t, []string{"leader", "us"}, e.order(t))
			})
		})
	}
}

func TestQueue_Promote_endsWithItsContext(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		leader := e.stand(t, 0, "leader")
		e.stand(t, 0, "hangs")
		e.stand(t, 0, "us")
		ctx, cancel := context.WithCancelCause(t.Context())
		got := e.promote(ctx, leader, "us")
		e.at(time.Minute)
		requirePending(t, got)
		cancel(errEnough)
		require.ErrorIs(t, receive(t, got).err, errEnough)
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())
	})
}

func TestQueue_LeaveTo(t *testing.T) {
	for name, tc := range map[string]struct {
		before     func(*env, queue.Entry, queue.Entry)
		done, gone bool
	}{
		"both stand":          {before: func(*env, queue.Entry, queue.Entry) {}, done: true},
		"next was asked":      {before: func(e *env, _, next queue.Entry) { put(e, next.Key) }, done: true},
		"e was written":       {before: func(e *env, us, _ queue.Entry) { put(e, us.Key) }, done: true},
		"next is gone":        {before: func(e *env, _, next queue.Entry) { e.srv.Delete(next.Key) }},
		"next's is another's": {before: func(e *env, _, next queue.Entry) { e.replaced(next) }},
		"e is gone":           {before: func(e *env, us, _ queue.Entry) { e.srv.Delete(us.Key) }, gone: true},
		"e's is another's":    {before: func(e *env, us, _ queue.Entry) { e.replaced(us) }, gone: true},
		"both are gone":       {before: func(e *env, us, n queue.Entry) { e.srv.Delete(us.Key); e.srv.Delete(n.Key) }, gone: true},
		"neither is what it was": {before: func(e *env, us, next queue.Entry) {
			e.srv.Delete(us.Key)
			e.srv.Put(us.Key, "")
			e.srv.Delete(next.Key)
		}, gone: true},
		"somebody else stands too": {before: func(e *env, _, _ queue.Entry) { e.srv.Put("a/zz", "") }, done: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				us, next := e.stand(t, 0, "us"), e.stand(t, 0, "next")
				tc.before(e, us, next)
				rev, keys := e.srv.Rev(), len(e.keys())
				done, gone, err := e.LeaveTo(t.Context(), us, next)
				require.NoError(t, err)
				require.Equal(t, [2]bool{tc.done, tc.gone}, [2]bool{done, gone})
				if !tc.done {
					require.Equal(t, rev, e.srv.Rev())
					return
				}
				require.Len(t, e.keys(), keys-1)
				require.NotContains(t, e.keys(), us.Key)
				done, gone, err = e.LeaveTo(t.Context(), us, next)
				require.NoError(t, err)
				require.False(t, done)
				require.True(t, gone)
			})
		})
	}
}

func put(e *env, key string) {
	e.t.Helper()
	_, err := e.c.Put(e.t.Context(), key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
	require.NoError(e.t, err)
}

// One steps back while the owner leaves in its favour, and they share a line: either the one who steps back stays, or
// the owner does. In one commit both would be done, and somebody else would lead.
func TestQueue_LeaveTo_sharesNoCommit(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		us, next := e.stand(t, 0, "us"), e.stand(t, 0, "next")
		e.stand(t, 0, "third")
		ahead, err := e.Ahead(t.Context(), next)
		require.NoError(t, err)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 5 * time.Millisecond}) // the others wait for it
		first := inBackground(e, func() (struct{}, error) {
			_, err := e.Leave(t.Context(), e.entry("nobody"))
			return struct{}{}, err
		})
		leaves := inBackground(e, func() (bool, error) {
			done, _, err := e.LeaveTo(t.Context(), us, next)
			return done, err
		})
		steps := inBackground(e, func() (bool, error) {
			done, _, _, err := e.StepBack(t.Context(), next, e.entry(queue.CandidateMark(0)+"next2"), ahead, "next")
			return done, err
		})
		require.NoError(t, receive(t, first).err)
		left, stepped := receive(t, leaves), receive(t, steps)
		require.NoError(t, left.err)
		require.NoError(t, stepped.err)
		require.NotEqual(t, left.val, stepped.val, "one of the two")
	})
}

func TestQueue_Write(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		us := e.stand(t, 0, "old")
		write := func(mod int64, value string) (int64, *mvccpb.KeyValue) {
			t.Helper()
			rev, found, err := e.Write(t.Context(), us, mod, value)
			require.NoError(t, err)
			return rev, found
		}
		rev, found := write(us.Rev, "new")
		require.Equal(t, e.srv.Rev(), rev)
		require.Nil(t, found)
		kv := e.srv.Keys(us.Key)[0]
		require.Equal(t, "new", string(kv.Value))
		require.Equal(t, us.Rev, kv.CreateRevision)
		require.Equal(t, int64(us.Lease), kv.Lease)

		again, found := write(us.Rev, "late") // a request that was sent before
		require.Zero(t, again)
		require.Equal(t, kv, found)
		require.Equal(t, rev, e.srv.Rev())

		require.True(t, e.srv.Delete(us.Key))
		again, found = write(rev, "x")
		require.Zero(t, again)
		require.Nil(t, found)
		e.srv.Put(us.Key, "theirs")
		again, found = write(e.srv.Rev(), "x")
		require.Zero(t, again)
		require.Equal(t, "theirs", string(found.Value))
		require.Equal(t, "theirs", string(e.srv.Keys(us.Key)[0].Value))
	})
}

func TestQueue_candidateCallsFail(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		us, next := e.stand(t, 0, "us"), e.stand(t, 1, "next")
		ahead, err := e.Ahead(t.Context(), next)
		require.NoError(t, err)
		e.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		for name, call := range map[string]func() error{
			"Overtake":     func() error { return e.Overtake(t.Context(), next, 0) },
			"Ahead":        func() error { _, err := e.Ahead(t.Context(), next); return err },
			"AwaitSettled": func() error { return e.AwaitSettled(t.Context(), next) },
			"Find":         func() error { _, err := e.Find(t.Context(), next); return err },
			"Promote":      func() error { _, err := e.Promote(t.Context(), us, "next"); return err },
			"LeaveTo":      func() error { _, _, err := e.LeaveTo(t.Context(), us, next); return err },
			"Write":        func() error { _, _, err := e.Write(t.Context(), us, us.Rev, "x"); return err },
			"StepBack": func() error {
				_, _, _, err := e.StepBack(t.Context(), next, e.entry("x"), ahead, "")
				return err
			},
		} {
			require.ErrorIs(t, call(), rpctypes.ErrPermissionDenied, name)
		}
		require.Len(t, e.keys(), 2)
	})
}
