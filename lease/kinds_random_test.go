package lease_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// place is a contender's key.
type place struct {
	spot
	*mvccpb.KeyValue
}

// places returns the keys of all contenders in the order of their creation.
func places(srv *fakeetcd.Server) (all []place) {
	for _, kv := range srv.Keys("p/") {
		key := strings.TrimPrefix(string(kv.Key), "p/")
		if i := strings.LastIndex(key, "/"); kv.Lease != 0 {
			all = append(all, place{spot{key[:i], key[i+1] == 'r'}, kv})
		}
	}
	slices.SortStableFunc(all, func(a, b place) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	return all
}

// ahead returns, for each of the spots, the first of the places before rev that excludes it.
func ahead(all []place, rev int64, spots ...spot) (list []place) {
	for _, s := range spots {
		i := slices.IndexFunc(all, func(p place) bool { return p.CreateRevision < rev && p.queue == s.queue && (!p.shared || !s.shared) })
		if i >= 0 {
			list = append(list, all[i])
		}
	}
	return list
}

// full reports whether k is a permit and all slots are taken.
func (k kind) full(all []place) bool {
	taken := slices.DeleteFunc(slices.Clone(all), func(p place) bool { return !strings.HasPrefix(p.queue, k.spots[0].queue+"/~slot/") })
	return k.of > 0 && len(taken) == k.of
}

// member is a session that waits for a lock or has it, or neither.
type member struct {
	*env
	owner  string
	want   kind
	began  int64              // the revision before its call
	cancel context.CancelFunc // nil: it wants nothing
	got    <-chan outcome[hold]
	lock   hold // nil: it waits
}

// moves begins the next step of a member and returns a function that ends it.
func (m *member) moves(t *testing.T, want kind) (end func()) {
	t.Helper()
	switch {
	case m.cancel == nil:
		ctx, cancel := context.WithCancel(t.Context())
		m.want, m.began, m.cancel = want, m.srv.Rev(), cancel
		m.got = inBackground(m.env, func() (hold, error) { return want.wait(ctx, m.s) })
		return func() {}
	case m.lock == nil:
		m.cancel()
		return func() {
			got := receive(t, m.got)
			m.cancel = nil
			if got.err == nil { // just before
				require.NoError(t, got.lock.Unlock(t.Context()))
				return
			}
			require.ErrorIs(t, got.err, context.Canceled)
		}
	}
	unlocked := later(func() error { return m.lock.Unlock(t.Context()) })
	return func() {
		require.NoError(t, receive(t, unlocked))
		m.cancel, m.lock = nil, nil
	}
}

// tries checks that a try succeeds if it can hold at once, and otherwise names the first that excludes it in each queue.
func (m *member) tries(t *testing.T, want kind) {
	t.Helper()
	all, began := places(m.srv), m.srv.Rev()
	first := ahead(all, math.MaxInt64, want.spots...)
	lock, err := want.try(t.Context(), m.s)
	switch {
	case len(first) == 0 && !want.full(all):
		require.NoError(t, err)
		m.want, m.began, m.cancel = want, began, func() {}
		m.got = inBackground(m.env, func() (hold, error) { return lock, nil })
		return
	case want.of == 0:
		var locked *lease.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, string(first[0].Key), locked.Key)
		require.Equal(t, first[0].CreateRevision, locked.Token.Revision())
		for _, p := range first {
			require.ErrorContains(t, err, fmt.Sprintf("lock %q is held by %q", strings.ReplaceAll(p.queue, "/~", "/"), p.Value))
		}
	}
	require.ErrorIs(t, err, lease.ErrLocked)
}

// entered is the revision of the member's first key, in the turnstile or of a slot.
func (m *member) entered() int64 {
	history := m.srv.History("p/" + m.want.spots[0].queue + "/")
	first := slices.IndexFunc(history, func(c fakeetcd.Change) bool { return c.Rev > m.began && c.Put && string(c.Kv.Value) == m.owner })
	return history[first].Rev
}

// check checks that the member has its keys, and holds if and only if nobody before it excludes it. The token is the
// revision of the keys, or of the slot, and higher than the tokens of all earlier holders that it excludes.
func (m *member) check(t *testing.T, all []place, highest map[spot]int64) {
	t.Helper()
	has, own := []spot(nil), int64(0)
	for _, p := range all {
		if string(p.Value) == m.owner {
			has, own = append(has, p.spot), p.CreateRevision
		}
	}
	if m.cancel == nil {
		require.Empty(t, has)
		return
	}
	granting := len(m.got) > 0
	if granting {
		m.lock = granted(t, m.got).lock
	}
	spots := m.want.spots
	if m.lock != nil && m.want.of > 0 {
		slot, _ := fence.LockFromContext(m.lock.Context())
		spots = []spot{{strings.TrimPrefix(slot, "p/"), false}}
		if granting {
			require.Empty(t, ahead(all, m.entered(), m.want.spots...))
		}
	}
	require.ElementsMatch(t, spots, has)
	waits := len(ahead(all, own, spots...)) > 0 || m.lock == nil && m.want.full(all)
	require.Equal(t, waits, m.lock == nil, "%v of %d at %d in %v", m.want.spots, m.want.of, own, all)
	if m.lock == nil {
		return
	}
	require.NoError(t, m.lock.Err())
	token, _ := fence.FromContext(m.lock.Context())
	if read, ok := fence.ReadFromContext(m.lock.Context()); ok {
		token = fence.Token(read)
	}
	require.Equal(t, own, token.Revision())
	for _, s := range spots {
		if granting {
			require.Greater(t, own, highest[spot{s.queue, false}])
			require.True(t, s.shared || own > highest[spot{s.queue, true}])
		}
		highest[s] = max(highest[s], own)
	}
}

// Whatever members want, hold and give up, some of them at the same time, and whatever other keys are in the queues, each
// holds as soon as nobody before it excludes it, and not before.
func TestKinds_random(t *testing.T) {
	all := []kind{
		treeOf("a", spot{"a", false}),
		treeOf("a/c/e", spot{"a", true}, spot{"a/~c", true}, spot{"a/~c/~e", false}),
		treeOf("a/cc", spot{"a", true}, spot{"a/~cc", false}), // neither above nor below a/c
	}
	all = slices.AppendSeq(all, maps.Values(kindsOf("a", 2)))
	all = slices.AppendSeq(all, maps.Values(kindsOf("c", 3)))
	for range 15 {
		synctest.Test(t, func(t *testing.T) {
			srv, highest := newServer(t), map[spot]int64{}
			var members []*member
			for i := range 8 {
				owner := fmt.Sprint("member ", i)
				members = append(members, &member{env: open(t, srv, lease.Options{Prefix: "p/", Owner: owner}), owner: owner})
			}
			for step := range 150 {
				var ends []func()
				for n, i := range rand.Perm(len(members))[:1+rand.IntN(3)] {
					m, want := members[i], all[rand.IntN(len(all))]
					if n == 0 && m.cancel == nil && rand.IntN(2) == 0 {
						m.tries(t, want)
						break
					}
					ends = append(ends, m.moves(t, want))
				}
				synctest.Wait()
				for _, end := range ends {
					end()
				}
				synctest.Wait()
				now := places(srv)
				for _, m := range members {
					m.check(t, now, highest)
				}
				key := []string{"p/a/jobs/1", "p/b/0123", "p/c/reports/1"}[rand.IntN(3)]
				if step%10 == 0 && !srv.Delete(key) { // nested names, and one that is no contender's
					srv.Put(key, "")
				}
				if step%20 == 0 {
					time.Sleep(rand.N(400 * time.Millisecond)) // kept watches may end
				}
			}
		})
	}
}
