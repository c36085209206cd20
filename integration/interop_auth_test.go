package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// permission on all keys that begin with a prefix.
type permission struct {
	prefix string
	kind   authpb.Permission_Type
}

// startWithAuth runs a server with authentication on. The user "app" may do what the permissions say; the client
// that is returned is root's.
func startWithAuth(t *testing.T, configure func(*embed.Config), app ...permission) (*etcdtest.Server, *clientv3.Client) {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{Configure: func(cfg *embed.Config) {
		cfg.BcryptCost = 4 // the cheapest: passwords are checked often
		if configure != nil {
			configure(cfg)
		}
	}})
	ctx, client := bounded(t), srv.Client(t)
	do := func(_ any, err error) {
		t.Helper()
		require.NoError(t, err)
	}
	do(client.UserAdd(ctx, "root", "root"))
	do(client.RoleAdd(ctx, "root"))
	do(client.UserGrantRole(ctx, "root", "root"))
	do(client.UserAdd(ctx, "app", "app"))
	do(client.RoleAdd(ctx, "app"))
	for _, p := range app {
		end := clientv3.GetPrefixRangeEnd(p.prefix)
		do(client.RoleGrantPermission(ctx, "app", p.prefix, end, clientv3.PermissionType(p.kind)))
	}
	do(client.UserGrantRole(ctx, "app", "app"))
	do(client.AuthEnable(ctx))
	return srv, srv.Client(t, user("root"))
}

// user makes a client the user's, whose password is the name.
func user(name string) etcdtest.ClientOption {
	return func(cfg *clientv3.Config) { cfg.Username, cfg.Password = name, name }
}

// keysAsRoot returns the keys with the prefix. The server's own inspection has no user, and so no permission.
func keysAsRoot(t *testing.T, root *clientv3.Client, prefix string) []string {
	t.Helper()
	resp, err := root.Get(bounded(t), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func TestSession_needsPermissionOnItsPrefixAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		allowed string // to the user
		opts    lease.Options
		lock    string
	}{
		"on Options.Prefix":     {"jobs/", lease.Options{Prefix: "jobs/", TTL: minTTL}, "nightly"},
		"on one lock, by name":  {"jobs/nightly/", lease.Options{TTL: minTTL}, "jobs/nightly"},
		"on one, with a prefix": {"jobs/nightly/", lease.Options{Prefix: "jobs/", TTL: minTTL}, "nightly"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, root := startWithAuth(t, nil, permission{tt.allowed, clientv3.PermReadWrite})
			client := srv.Client(t, user("app"))
			s, other := newSession(t, client, tt.opts), newSession(t, client, tt.opts)

			// Taken at once, waited for, tried in vain and released.
			first := mustLock(t, s, tt.lock)
			_, err := other.TryLock(bounded(t), tt.lock)
			require.ErrorIs(t, err, lease.ErrLocked)
			waiting := make(chan *lease.Lock, 1)
			go func() {
				l, _ := other.Lock(bounded(t), tt.lock)
				waiting <- l
			}()
			require.Eventually(t, func() bool { return len(keysAsRoot(t, root, tt.allowed)) == 2 }, patience, time.Millisecond)
			require.Empty(t, waiting)
			require.NoError(t, first.Unlock(bounded(t)))
			second := <-waiting
			require.NotNil(t, second)

			// Renewed, though the server looks at the permission for every key of the lease.
			granted := time.Now()
			require.Eventually(t, func() bool {
				return other.Status().Deadline.Sub(granted) > 2*minTTL
			}, patience, 10*time.Millisecond)
			require.NoError(t, second.Context().Err())

			// Watched: the end of a key that somebody else deletes is told, with the reason.
			_, err = root.Delete(bounded(t), second.Key())
			require.NoError(t, err)
			var lost *lease.LostError
			require.ErrorAs(t, awaitDone(t, second), &lost)
			require.Equal(t, lease.KeyDeleted, lost.Reason)
			require.ErrorIs(t, second.Unlock(bounded(t)), lease.ErrLost)

			// Tried with success, and closed with the lock held.
			third, err := other.TryLock(bounded(t), tt.lock)
			require.NoError(t, err)
			require.Equal(t, []string{third.Key()}, keysAsRoot(t, root, ""))
			require.NoError(t, other.Close(bounded(t)))
			require.Empty(t, keysAsRoot(t, root, ""))
			require.NoError(t, s.Close(bounded(t)))
			leases, err := root.Leases(bounded(t))
			require.NoError(t, err)
			require.Empty(t, leases.Leases)
		})
	}
}

func TestSession_saysAtOnceThatPermissionIsMissing(t *testing.T) {
	t.Parallel()
	srv, root := startWithAuth(t, nil,
		permission{"jobs/", clientv3.PermReadWrite},
		permission{"read/", clientv3.PermRead},
		permission{"written/", clientv3.PermWrite},
	)
	s := newSession(t, srv.Client(t, user("app")), lease.Options{})
	held := mustLock(t, s, "jobs/nightly")

	for name, lock := range map[string]func(context.Context, string) (*lease.Lock, error){
		"Lock": s.Lock, "TryLock": s.TryLock,
	} {
		for _, job := range []string{"job", "other/nightly", "read/nightly", "written/nightly"} {
			asked := time.Now()
			_, err := lock(bounded(t), job)
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied, "%s %q", name, job)
			require.ErrorContains(t, err, job)
			require.ErrorContains(t, err, "permission denied")
			require.Less(t, time.Since(asked), patience/6, "%s %q", name, job)
		}
	}
	require.Equal(t, []string{held.Key()}, keysAsRoot(t, root, ""))
	require.Equal(t, lease.Held, s.Status().State)
	require.NoError(t, held.Context().Err())
	require.NoError(t, held.Unlock(bounded(t)))
}

// Pain 22: the token by which the client is known expires between two renewals.
func TestSession_outlivesItsAuthToken(t *testing.T) {
	t.Parallel()
	const (
		tokenTTL = 1 * time.Second // the server looks for expired ones each second
		ttl      = 9 * time.Second // renewed every 3 s
	)
	srv, root := startWithAuth(t, func(cfg *embed.Config) {
		cfg.AuthTokenTTL = uint(tokenTTL / time.Second)
	}, permission{"jobs/", clientv3.PermReadWrite})
	s := newSession(t, srv.Client(t, user("app")), lease.Options{TTL: ttl, Prefix: "jobs/"})
	l := mustLock(t, s, "nightly")
	granted := time.Now()
	stale, err := root.Authenticate(bounded(t), "app", "app")
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		return s.Status().Deadline.Sub(granted) > ttl+ttl/2 // renewed twice
	}, patience, 10*time.Millisecond)
	_, err = srv.Client(t, func(cfg *clientv3.Config) { cfg.Token = stale.Token }).Get(bounded(t), "jobs/")
	require.ErrorIs(t, err, rpctypes.ErrInvalidAuthToken, "the token has not expired")

	require.Equal(t, lease.Held, s.Status().State)
	require.NoError(t, l.Context().Err())
	require.Equal(t, []string{l.Key()}, keysAsRoot(t, root, ""))
	require.NoError(t, l.Unlock(bounded(t)))
	require.NoError(t, mustLock(t, s, "nightly").Unlock(bounded(t)))
	require.NoError(t, s.Close(bounded(t)))
}
