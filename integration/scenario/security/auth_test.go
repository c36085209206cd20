package security_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// While a session holds a lock and waits for another, the operator takes its access away. The holder loses the lock at
// its deadline, before the next one gets it. All errors name the reason, and the client does not flood the server with
// a wrong password. When it has access again, the session heals.
func TestSession_losesItsAccess(t *testing.T) {
	t.Parallel()
	const (
		missing = "the server requires authentication, and the client gives no user and password"
		wrong   = "authentication failed, invalid user ID or password"
		denied  = "permission denied"
	)
	change := func(to string) func(*testing.T, *server) {
		return func(t *testing.T, srv *server) { //nolint:thelper // a row
			require.NoError(t, second(srv.root.UserChangePassword(rig.Bounded(t), "worker", secret("a password", to))))
		}
	}
	for name, row := range map[string]struct {
		open           bool // the server demands no authentication at first, and the client has no user
		take, giveBack func(*testing.T, *server)
		lost, refused  string
		err            error
	}{
		"authentication is turned on": {
			open:     true,
			take:     func(t *testing.T, srv *server) { require.NoError(t, second(srv.root.AuthEnable(rig.Bounded(t)))) },  //nolint:thelper // a row
			giveBack: func(t *testing.T, srv *server) { require.NoError(t, second(srv.root.AuthDisable(rig.Bounded(t)))) }, //nolint:thelper // a row
			lost:     missing, refused: missing, err: rpctypes.ErrUserEmpty,
		},
		// The server forgets the client's token.
		"password is changed": {
			take: change("second password"), giveBack: change(password("worker")),
			lost: wrong, refused: wrong, err: rpctypes.ErrAuthFailed,
		},
		"permission is revoked": {
			take:     func(t *testing.T, srv *server) { srv.forbid(t) },          //nolint:thelper // a row
			giveBack: func(t *testing.T, srv *server) { srv.permit(t, "jobs/") }, //nolint:thelper // a row
			lost:     denied + " (renewing a lease requires permission to write every key attached to it)", refused: denied,
			err: rpctypes.ErrPermissionDenied,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := faults.NewInterceptor(t)
			srv := start(t)
			client := srv.as(t, "worker", etcdtest.Dial(in.DialOptions()...))
			if row.open {
				require.NoError(t, second(srv.root.AuthDisable(rig.Bounded(t))))
				client = srv.Client(t, logged, etcdtest.Dial(in.DialOptions()...))
			}
			s := newSession(t, client, lease.Options{TTL: shortTTL})
			held := rig.MustLock(t, s, "n")
			rival := newSession(t, srv.root, lease.Options{TTL: longTTL}) // has a user and a password, from the start
			theirs := rig.MustLock(t, rival, "other")
			waiter := make(chan error, 1)
			go func() { waiter <- second(s.Lock(rig.Bounded(t), "other")) }()
			rig.AwaitQueue(t, srv.root, "jobs/other", 2)

			const authenticate = etcdserverpb.Auth_Authenticate_FullMethodName
			before := in.Sent(authenticate)
			row.take(t, srv)
			next := rig.MustLock(t, rival, "n")
			require.Error(t, held.Err(), "two holders at once")
			require.Greater(t, next.Token(), held.Token())
			cause := context.Cause(held.Context())
			rig.RequireLost(t, cause, lease.ReasonDeadlinePassed)
			require.ErrorContains(t, cause, row.lost)
			err := <-waiter // refused, or lost like its session
			require.ErrorContains(t, err, `lock "other"`)
			require.ErrorContains(t, err, row.refused)
			// Until the deadline five loops retry. Renewals are retried after a tenth of the TTL, at most a second. The watch and
			// the read of each key are retried after 25 ms, then with a doubling backoff whose jitter takes off up to a half.
			tried := in.Sent(authenticate) - before
			require.LessOrEqual(t, tried, 5*8)
			if errors.Is(row.err, rpctypes.ErrAuthFailed) {
				require.Positive(t, tried)
			}

			// A further call fails again at once. Between calls the session sends nothing.
			err = second(s.Lock(rig.Bounded(t), "n"))
			require.ErrorIs(t, err, row.err)
			require.ErrorContains(t, err, row.refused)
			after := in.Sent(authenticate)
			row.giveBack(t, srv)
			require.Equal(t, after, in.Sent(authenticate))
			rig.AwaitRenewal(t, rival)
			require.NoError(t, next.Unlock(rig.Bounded(t)))
			require.NoError(t, theirs.Unlock(rig.Bounded(t)))
			require.Greater(t, rig.MustLock(t, s, "n").Token(), next.Token())
			require.NoError(t, rig.MustLock(t, s, "other").Unlock(rig.Bounded(t)))
		})
	}
}

// The server keeps serving a watch that it has allowed once, so an observer only learns after a while that its
// permission to read is gone. An observer of another name is not affected.
func TestObserve_permissionIsRevoked(t *testing.T) {
	t.Parallel()
	srv := start(t)
	client := srv.as(t, "worker")
	s := newSession(t, srv.root, lease.Options{})
	l, err := election.Campaign(rig.Bounded(t), s, "n", election.Options{Value: secret("a value", "here I lead")})
	require.NoError(t, err)
	srv.permit(t, "m/")
	err = rig.Observe(t, client, "other").AwaitEnd(t)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, `election: observe "other": `)
	n, m := rig.Observe(t, client, "jobs/n"), rig.Observe(t, client, "m")
	n.Sees(t, election.Leader{Value: "here I lead", Revision: l.Token().Revision(), Key: l.Key(), Lease: s.Status().LeaseID})
	m.Sees(t, election.Leader{})
	srv.forbid(t)
	require.ErrorIs(t, n.AwaitEnd(t), rpctypes.ErrPermissionDenied)
	require.NoError(t, second(srv.root.Put(rig.Bounded(t), "m/none", ""))) // no candidate
	m.SeesNoMore(t)
}
