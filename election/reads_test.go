package election_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// stage is a server with two clients, one that reads and one that writes as candidates do.
type stage struct {
	srv *fakeetcd.Server
	c   *fakeetcd.Client // reads, on its own network
	own *fakeetcd.Client // writes
}

func newStage(t *testing.T) *stage {
	t.Helper()
	srv := newServer(t)
	return &stage{srv: srv, c: srv.NewClient(t.Context()), own: srv.NewClient(t.Context())}
}

func (s *stage) grant(t *testing.T) clientv3.LeaseID {
	t.Helper()
	granted, err := s.own.Grant(t.Context(), 3600)
	require.NoError(t, err)
	return granted.ID
}

func keyOf(name string, lease clientv3.LeaseID, suffix string) string {
	return name + "/" + strconv.FormatInt(int64(lease), 16) + suffix
}

// put writes a key on a lease and returns its contender as others see it.
func (s *stage) put(t *testing.T, key, value string, lease clientv3.LeaseID) election.Leader {
	t.Helper()
	resp, err := s.own.Put(t.Context(), key, value, clientv3.WithLease(lease), clientv3.WithPrevKV())
	require.NoError(t, err)
	created := resp.Header.Revision
	if resp.PrevKv != nil {
		created = resp.PrevKv.CreateRevision
	}
	return election.Leader{Value: value, Revision: created, Key: key, Lease: lease}
}

// stands enters one more candidate of "n".
func (s *stage) stands(t *testing.T, value string) election.Leader {
	t.Helper()
	lease := s.grant(t)
	return s.put(t, keyOf("n", lease, ""), value, lease)
}

// proclaims changes a candidate's value.
func (s *stage) proclaims(t *testing.T, l election.Leader, value string) election.Leader {
	t.Helper()
	return s.put(t, l.Key, value, l.Lease)
}

// dies ends a candidate's lease.
func (s *stage) dies(t *testing.T, l election.Leader) {
	t.Helper()
	require.NoError(t, s.srv.Revoke(l.Lease))
}

func TestCandidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		var want []election.Leader
		lease := s.grant(t)
		s.srv.Put("n/planted", "no contender")
		// The order of the keys is the reverse of the order of the revisions.
		for i := range 30 {
			want = append(want, s.put(t, keyOf("n", lease, "-"+strconv.Itoa(99-i)), strconv.Itoa(i), lease))
		}
		got, err := election.Candidates(t.Context(), s.c.Client, "n")
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Len(t, s.c.Calls(fakeetcd.Any), 3, "two pages of names, and the values")
	})
}

// reads are the functions that read, Observe until its first leader.
var reads = map[string]func(ctx context.Context, client *clientv3.Client, name string) error{
	"Current": func(ctx context.Context, client *clientv3.Client, name string) error {
		_, err := election.Current(ctx, client, name)
		return err
	},
	"Candidates": func(ctx context.Context, client *clientv3.Client, name string) error {
		_, err := election.Candidates(ctx, client, name)
		return err
	},
	"Observe": func(ctx context.Context, client *clientv3.Client, name string) error {
		for _, err := range election.Observe(ctx, client, name) {
			return err
		}
		return context.Cause(ctx)
	},
}

func TestReads_end(t *testing.T) {
	for name, read := range reads {
		inBubble(t, name, func(t *testing.T) {
			s := newStage(t)
			s.stands(t, "a")

			errEnough := errors.New("enough")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errEnough)
			defer cancel()
			s.c.Cut()
			began := time.Now()
			require.ErrorIs(t, read(ctx, s.c.Client, "n"), errEnough)
			require.Equal(t, time.Minute, time.Since(began))
			s.c.Restore()

			s.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCPermissionDenied})
			err := read(t.Context(), s.c.Client, "n")
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			require.ErrorContains(t, err, ` "n": `)

			require.EqualError(t, read(t.Context(), nil, "n"), "election: client is nil, want an etcd client")
			half := s.srv.NewClient(t.Context()).Client // an observer would read other keys than it watches
			half.Watcher = namespace.NewWatcher(half.Watcher, "x/")
			require.ErrorContains(t, read(t.Context(), half, "n"), "election: client: [Watcher] has a namespace and [KV Lease] has none")
			require.EqualError(t, read(t.Context(), s.c.Client, ""), "election: name is empty, want 1 to 2304 bytes")
			require.ErrorContains(t, read(t.Context(), s.c.Client, "a/"), `election: name "a/" ends with "/"`)
			require.ErrorContains(t, read(t.Context(), s.c.Client, strings.Repeat("x", 2305)), "election: name has 2305 bytes")
			_ = s.c.Close()
			require.ErrorContains(t, read(t.Context(), s.c.Client, "n"), "client is closed")
		})
	}
}

// A stream that falls silent does not break. The probes find it, and another stream replaces it.
func TestObserve_replacesASilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		var all []*audience
		for _, name := range []string{"n", "n", "m"} {
			all = append(all, observe(t, s.c, name))
			all[len(all)-1].sees(t, none)
		}
		time.Sleep(time.Minute)
		s.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour}) // also delays the events behind it
		began := time.Now()
		first := s.stands(t, "first")
		s.dies(t, first)
		second := s.stands(t, "second")
		for range 2 {
			for _, want := range []election.Leader{first, none, second} {
				require.Equal(t, want, <-all[0].seen)
			}
			all[0] = all[1]
		}
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
		all[2].seesNothing(t)
		lease := s.grant(t)
		l := s.put(t, keyOf("m", lease, ""), "", lease)
		require.Equal(t, l, <-all[2].seen)
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
	})
}

// A new observer may have read a leader that the others never saw. After a compaction it sees the present leader too.
func TestObserve_compactionAfterANewObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		first := s.stands(t, "x")
		a := observe(t, s.c, "n")
		a.sees(t, first)
		remove := s.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: rpctypes.ErrGRPCNoLeader})
		s.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		other := s.proclaims(t, first, "y")
		joined := observe(t, s.c, "n")
		joined.sees(t, other)
		s.proclaims(t, first, "x")
		require.NoError(t, s.srv.Compact(s.srv.Rev()))
		time.Sleep(time.Second)
		remove()
		time.Sleep(3 * time.Second)
		a.seesNothing(t) // the value is the one that a has seen
		joined.sees(t, first)
	})
}

// A restored cluster may have passed the revision that was seen last or not. Observe notices the restore, and yields its
// leader, also one that is older than one that was seen, as after a restore with --bump-revision and --mark-compacted, or
// nobody, and then the next leader, whose token may be smaller.
func TestObserve_restored(t *testing.T) {
	for name, tc := range map[string]struct {
		further int
		leads   bool // somebody leads the restored cluster, and its history is compacted
	}{
		"further on": {100, false}, "behind": {0, false}, "with a bump": {100, true},
	} {
		inBubble(t, name, func(t *testing.T) {
			s, after := newStage(t), newStage(t)
			restore := s.c.Restorable(after.c.Client)
			a := observe(t, s.c, "n")
			a.sees(t, none)
			older := none
			if tc.leads {
				older = after.stands(t, "older")
			}
			s.srv.Put("other", "")
			first := s.stands(t, "first")
			require.Greater(t, first.Revision, older.Revision)
			a.sees(t, first)
			if tc.leads {
				s.dies(t, first)
				a.sees(t, none)
			}
			for range tc.further {
				after.srv.Put("other", "")
			}
			if tc.leads {
				require.NoError(t, after.srv.Compact(after.srv.Rev()))
			}
			restore()
			s.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
			time.Sleep(10 * time.Second)
			a.sees(t, older)
			if !tc.leads {
				next := after.stands(t, "next")
				time.Sleep(catchUp)
				a.sees(t, next)
			}
		})
	}
}

// An error that a retry cannot help ends the iteration, is yielded once, and does not end later observers.
func TestObserve_endsWithAFinalError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		l := s.stands(t, "a")
		remove := s.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		err := observe(t, s.c, "n").ended(t)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.ErrorContains(t, err, `election: observe "n": `)
		remove()

		// The same later, when the watch breaks.
		a, b := observe(t, s.c, "n"), observe(t, s.c, "n")
		a.sees(t, l)
		b.sees(t, l)
		remove = s.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		joined := observe(t, s.c, "n")
		require.ErrorIs(t, joined.ended(t), rpctypes.ErrPermissionDenied)
		a.seesNothing(t)
		s.c.BreakWatches(rpctypes.ErrGRPCPermissionDenied)
		require.ErrorIs(t, a.ended(t), rpctypes.ErrPermissionDenied)
		require.ErrorIs(t, b.ended(t), rpctypes.ErrPermissionDenied)
		remove()

		// A new observer is not affected.
		a = observe(t, s.c, "n")
		a.sees(t, l)
		_ = s.c.Close()
		require.ErrorContains(t, a.ended(t), `election: observe "n": the etcd client is closed`)
	})
}

// After an error a new observer can begin, even if another one has not noticed the error yet.
func TestObserve_beginsAnewAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		l := s.stands(t, "a")
		last := error(nil)
		for got, err := range election.Observe(t.Context(), s.c.Client, "n") {
			if last = err; err != nil {
				continue
			}
			require.Equal(t, l, got)
			remove := s.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
			s.c.BreakWatches(rpctypes.ErrGRPCPermissionDenied)
			time.Sleep(time.Second)
			remove()
			observe(t, s.c, "n").sees(t, l)
		}
		require.ErrorIs(t, last, rpctypes.ErrPermissionDenied)
	})
}

func TestObserve_endsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		l := s.stands(t, "a")
		ended, cancelEnded := context.WithCancel(t.Context())
		cancelEnded()
		for l, err := range election.Observe(ended, s.c.Client, "n") {
			require.FailNow(t, "Observe yielded although its context had ended", "%v, %v", l, err)
		}

		// While the observer waits, while it reads, while etcd's client pauses before it opens its watches again, and
		// between two leaders that the observer yields.
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("enough"))
		defer cancel()
		began, seen := time.Now(), 0
		for got, err := range election.Observe(ctx, s.c.Client, "n") {
			require.NoError(t, err)
			require.Equal(t, l, got)
			seen++
		}
		require.Equal(t, 1, seen)
		require.Equal(t, time.Minute, time.Since(began))

		a := observe(t, s.own, "n")
		a.sees(t, l)
		s.own.BreakWatches(fakeetcd.ErrUnavailable)
		synctest.Wait()
		a.stop()
		synctest.Wait()
		require.False(t, a.waiting(), "the observer waits for the client")

		time.Sleep(catchUp)
		a = observe(t, s.own, "n")
		a.sees(t, l)
		ctx, cancelThis := context.WithCancel(t.Context())
		defer cancelThis()
		for _, err := range election.Observe(ctx, s.own.Client, "n") {
			require.NoError(t, err)
			s.proclaims(t, l, "b")
			synctest.Wait()
			cancelThis()
			seen++
		}
		require.Equal(t, 2, seen)

		s.own.Inject(fakeetcd.Get, fakeetcd.Fault{Lose: fakeetcd.Request})
		joined := observe(t, s.own, "n")
		time.Sleep(time.Minute)
		joined.seesNothing(t)
		joined.stop()
		require.NoError(t, joined.ended(t))
	})
}
