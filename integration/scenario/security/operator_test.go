package security_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// intervention is what an operator does to a key that is not theirs.
type intervention struct {
	want lease.Reason
	do   func(t *testing.T, operator *clientv3.Client, key string)
}

// asFarAsKnown is the reason that a handle's end gives. The key's end is all that is known of a revoked lease if the server
// does not answer at once what has become of it: the handle does not wait for that.
func (i intervention) asFarAsKnown(in *faults.Interceptor) lease.Reason {
	if i.want == lease.LeaseGone && in.Answered(faults.TimeToLive) == 0 {
		return lease.KeyDeleted
	}
	return i.want
}

// interventions are done with etcdctl in practice: lease revoke, del, put, put --lease.
func interventions() map[string]intervention {
	return map[string]intervention{
		"lease revoked": {lease.LeaseGone, func(t *testing.T, operator *clientv3.Client, key string) {
			t.Helper()
			resp, err := operator.Get(bounded(t), key)
			require.NoError(t, err)
			r, err := operator.Revoke(bounded(t), clientv3.LeaseID(resp.Kvs[0].Lease))
			must(t, r, err)
		}},
		"key deleted": {lease.KeyDeleted, func(t *testing.T, operator *clientv3.Client, key string) {
			t.Helper()
			r, err := operator.Delete(bounded(t), key)
			must(t, r, err)
		}},
		"key overwritten": {lease.KeyOverwritten, func(t *testing.T, operator *clientv3.Client, key string) {
			t.Helper()
			r, err := operator.Put(bounded(t), key, "mine")
			must(t, r, err)
		}},
		"key taken to another lease": {lease.KeyOverwritten, func(t *testing.T, operator *clientv3.Client, key string) {
			t.Helper()
			other, err := operator.Grant(bounded(t), 60)
			require.NoError(t, err)
			r, err := operator.Put(bounded(t), key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(other.ID))
			must(t, r, err)
		}},
	}
}

// tenancy is something held that an operator can take away, and the end of the call by which it was held.
type tenancy struct {
	ctx   context.Context //nolint:containedctx // it is what is tested
	token fence.Token
	key   string
	ended func(t *testing.T) error
}

// ways are the ways to hold a name. (A lock that is just held: TestLock_lossIsNoticed, of the module's own package.)
func ways() map[string]func(t *testing.T, s *lease.Session) tenancy {
	return map[string]func(t *testing.T, s *lease.Session) tenancy{
		"Lock": func(t *testing.T, s *lease.Session) tenancy { //nolint:thelper // one of several
			l := mustLock(t, s, "n")
			return tenancy{l.Context(), l.Token(), l.Key(), func(t *testing.T) error { //nolint:thelper // the same
				return l.Unlock(bounded(t))
			}}
		},
		"Do": func(t *testing.T, s *lease.Session) tenancy { //nolint:thelper // one of several
			runs, done := make(chan tenancy, 1), make(chan error, 1)
			go func() {
				done <- s.Do(bounded(t), "n", func(ctx context.Context, token fence.Token) error {
					runs <- tenancy{ctx: ctx, token: token}
					<-ctx.Done()
					return nil
				})
			}()
			held := <-runs
			held.key = keyOf(t, s, "n")
			held.ended = func(*testing.T) error { return <-done }
			return held
		},
		"Campaign": func(t *testing.T, s *lease.Session) tenancy { //nolint:thelper // one of several
			l, err := election.Campaign(bounded(t), s, "n", election.Options{})
			require.NoError(t, err)
			return tenancy{l.Context(), l.Token(), l.Key(), func(t *testing.T) error { //nolint:thelper // the same
				return l.Resign(bounded(t))
			}}
		},
		"Run": func(t *testing.T, s *lease.Session) tenancy { //nolint:thelper // one of several
			runs, lost := make(chan tenancy, 1), make(chan error, 1)
			life, stop := context.WithCancel(bounded(t))
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = election.Run(life, s, "n", election.Options{Lost: func(err error) {
					lost <- err
					stop() // or else it campaigns again
				}}, func(ctx context.Context, token fence.Token) error {
					l, _ := election.FromContext(ctx)
					runs <- tenancy{ctx: ctx, token: token, key: l.Key()}
					<-ctx.Done()
					return nil
				})
			}()
			held := <-runs
			held.ended = func(*testing.T) error {
				err := <-lost
				<-done
				return err
			}
			return held
		},
	}
}

// keyOf is the key of the one who holds a name.
func keyOf(t *testing.T, s *lease.Session, name string) string {
	t.Helper()
	_, err := s.TryLock(bounded(t), name)
	var locked *lease.LockedError
	require.ErrorAs(t, err, &locked)
	return locked.Key
}

// Whatever an operator does to a key or its lease ends the tenure at once, by the watch and not by a renewal or the
// deadline, and says what was done. The next one has a greater token, and a resource that has seen it refuses the
// first.
func TestTenure_operatorTakesItAway(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for what, row := range interventions() {
		for way, hold := range ways() {
			t.Run(way+", "+what, func(t *testing.T) {
				t.Parallel()
				in, dial := counted(t)
				opts := lease.Options{Prefix: t.Name() + "/", TTL: time.Minute}
				s := newSession(t, srv.Client(t, dial), opts)
				next := newSession(t, srv.Client(t), opts)
				held := hold(t, s)
				var resource fence.Guard
				require.NoError(t, resource.Claim("r", held.token))
				waiter := make(chan *lease.Lock, 1)
				go func() {
					l, _ := next.Lock(bounded(t), "n")
					waiter <- l
				}()
				renewals := in.Sent(faults.LeaseKeepAlive)
				row.do(t, srv.Client(t), held.key)
				cause := awaitEnd(t, held.ctx)
				want := row.asFarAsKnown(in)
				lostFor(t, cause, want)
				require.Equal(t, renewals, in.Sent(faults.LeaseKeepAlive), "a renewal told it")
				lostFor(t, held.ended(t), want)

				successor := <-waiter
				require.NotNil(t, successor)
				require.Greater(t, successor.Token(), held.token)
				require.NoError(t, resource.Claim("r", successor.Token()))
				require.ErrorIs(t, resource.Check("r", held.token), fence.ErrStale)
				require.NoError(t, resource.Check("r", successor.Token()))
				require.NoError(t, successor.Unlock(bounded(t)))
				require.Equal(t, want == lease.LeaseGone, s.Status().State == lease.Lost)
			})
		}
	}
}

// A waiter whose lease is revoked, or whose key is deleted, fails at once and does not hold up those behind it.
func TestWaiter_operatorTakesItAway(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for what, row := range interventions() {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			opts := lease.Options{Prefix: t.Name() + "/", TTL: time.Minute}
			first := mustLock(t, newSession(t, srv.Client(t), opts), "n")
			in, dial := counted(t)
			s, behind := newSession(t, srv.Client(t, dial), opts), newSession(t, srv.Client(t), opts)
			failed := make(chan error, 1)
			go func() {
				_, err := election.Campaign(bounded(t), s, "n", election.Options{})
				failed <- err
			}()
			queue := func(n int) (keys []string) {
				require.Eventually(t, func() bool {
					keys = srv.Keys(t, opts.Prefix+"n/")
					return len(keys) == n
				}, patience, time.Millisecond)
				return keys
			}
			var theirs string
			for _, key := range queue(2) {
				if key != first.Key() {
					theirs = key
				}
			}
			waiter := make(chan *lease.Lock, 1)
			go func() {
				l, _ := behind.Lock(bounded(t), "n")
				waiter <- l
			}()
			queue(3)
			row.do(t, srv.Client(t), theirs)
			err := <-failed
			lostFor(t, err, row.asFarAsKnown(in))
			require.Empty(t, waiter)
			require.NoError(t, first.Unlock(bounded(t)))
			next := <-waiter
			require.NotNil(t, next)
			require.Greater(t, next.Token(), first.Token())
		})
	}
}
