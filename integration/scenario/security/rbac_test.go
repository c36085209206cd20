package security_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

const (
	// shortTTL is for leases that a test loses by their deadline. A busy machine must still manage to hold them for a
	// while.
	shortTTL = 8 * time.Second
	// longTTL is for leases that are renewed a few times in a test.
	longTTL = 12 * time.Second
)

// second drops the first of two results.
func second[T any](_ T, err error) error { return err }

// server is a server with the users of SECURITY.md: "worker" may read and write below "jobs/".
type server struct {
	*etcdtest.Server
	root *clientv3.Client
}

// password is the password of a user.
func password(user string) string { return secret("a password", "password-of-"+user) }

// start executes the commands of SECURITY.md.
func start(t *testing.T) *server {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "SECURITY.md"))
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)\n## Permissions\n.*?\n```sh\n(.*?\n)```\n").FindSubmatch(text)
	require.NotNil(t, block, "no commands")
	srv, path := etcdtest.Start(t, etcdtest.Options{}), etcdtest.Etcdctl(t)
	for command := range strings.Lines(string(block[1])) {
		words := strings.Fields(command)
		require.Equal(t, "etcdctl", words[0], command)
		etcdctl := exec.CommandContext(rig.Bounded(t), path, append(words[1:],
			"--endpoints", srv.Endpoint(), "--dial-timeout", rig.Patience.String(), "--command-timeout", rig.Patience.String())...)
		if words[1] == "user" && words[2] == "add" {
			etcdctl.Args = append(etcdctl.Args, "--interactive=false")
			etcdctl.Stdin = strings.NewReader(password(words[3]))
		}
		out, err := etcdctl.CombinedOutput()
		require.NoError(t, err, "%s%s", command, out)
	}
	s := &server{Server: srv}
	s.root = s.as(t, "root")
	return s
}

// as returns a client of a user.
func (s *server) as(t *testing.T, user string, opts ...etcdtest.ClientOption) *clientv3.Client {
	t.Helper()
	return s.Client(t, append(opts, logged, etcdtest.User(user, password(user)))...)
}

// add adds a user without a role, and returns a client of that user.
func (s *server) add(t *testing.T, user string) *clientv3.Client {
	t.Helper()
	require.NoError(t, second(s.root.UserAdd(rig.Bounded(t), user, password(user))))
	return s.as(t, user)
}

// permit gives the worker permission on a prefix.
func (s *server) permit(t *testing.T, prefix string) {
	t.Helper()
	require.NoError(t, second(s.root.RoleGrantPermission(rig.Bounded(t), "worker", prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite))))
}

// forbid revokes the worker's permission.
func (s *server) forbid(t *testing.T) {
	t.Helper()
	require.NoError(t, second(s.root.RoleRevokePermission(rig.Bounded(t), "worker", "jobs/", clientv3.GetPrefixRangeEnd("jobs/"))))
}

// The role that SECURITY.md gives to services is enough for all that a service does with locks and elections.
func TestRecipe_isEnoughForServices(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ user, prefix string }{
		{"worker", "jobs/"},
		{"nightly", "jobs/nightly/"}, // names below one lock's name
	} {
		t.Run(row.user, func(t *testing.T) {
			t.Parallel()
			srv := start(t)
			opts := lease.Options{Prefix: row.prefix, TTL: longTTL}
			s, other := newSession(t, srv.as(t, row.user), opts), newSession(t, srv.as(t, row.user), opts)
			locksOf(t, s, other)
			electionOf(t, s, other, srv.as(t, row.user), row.prefix+"role")

			rig.MustLock(t, s, "held") // Close revokes the lease with this key
			require.NoError(t, s.Close(rig.Bounded(t)))
			require.NoError(t, other.Close(rig.Bounded(t)))
			left, err := srv.root.Get(rig.Bounded(t), "", clientv3.WithPrefix())
			require.NoError(t, err)
			require.Empty(t, left.Kvs)
			leases, err := srv.root.Leases(rig.Bounded(t))
			require.NoError(t, err)
			for _, closed := range []*lease.Session{s, other} { // a lease whose grant was not answered in time expires by itself
				require.NotContains(t, leases.Leases, clientv3.LeaseStatus{ID: closed.Status().LeaseID})
			}
		})
	}
}

// locksOf does all that a service does with locks.
func locksOf(t *testing.T, s, other *lease.Session) {
	t.Helper()
	first := rig.MustLock(t, s, "n")
	_, err := other.TryLock(rig.Bounded(t), "n")
	require.ErrorIs(t, err, lease.ErrLocked)
	next := rig.Wait(t, other, "n")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = other.Lock(short, "n") // gives up
	require.ErrorIs(t, err, context.DeadlineExceeded)
	granted := time.Now()
	require.Eventually(t, func() bool { return s.Status().Deadline.Sub(granted) > longTTL }, rig.Patience, 10*time.Millisecond)
	require.NoError(t, context.Cause(first.Context()), "the lock is lost in spite of a renewal")
	require.NoError(t, first.Unlock(rig.Bounded(t)))
	require.NoError(t, rig.Await(t, next, "the waiter was not served").Unlock(rig.Bounded(t)))
	require.NoError(t, s.Do(rig.Bounded(t), "n", func(context.Context, fence.Token) error { return nil }))

	// Concurrent transactions share commits, as nested transactions.
	const many = 100
	locks := make([]*lease.Lock, many)
	rig.Spread(t, many, many, func(i int) (err error) {
		locks[i], err = s.Lock(rig.Bounded(t), fmt.Sprintf("many/%d", i))
		return err
	})
	renewed := s.Status().Deadline
	require.Eventually(t, func() bool { return s.Status().Deadline.After(renewed) }, rig.Patience, 10*time.Millisecond)
	rig.Spread(t, many, many, func(i int) error { return locks[i].Unlock(rig.Bounded(t)) })
}

// electionOf does all that a service does with elections. The name includes the sessions' prefix.
func electionOf(t *testing.T, s, other *lease.Session, client *clientv3.Client, name string) {
	t.Helper()
	a, b := secret("a value", "value of candidate a"), secret("a value", "value of candidate b")
	l, err := election.Campaign(rig.Bounded(t), s, "role", election.Options{Value: a, KeepLead: true})
	require.NoError(t, err)
	next := make(chan *election.Leadership, 1)
	go func() {
		l, err := election.Campaign(rig.Bounded(t), other, "role", election.Options{Value: b, Priority: 1})
		assert.NoError(t, err)
		next <- l
	}()
	rig.AwaitQueue(t, client, name, 2)
	all, err := election.Candidates(rig.Bounded(t), client, name)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.NoError(t, l.Proclaim(rig.Bounded(t), a+" too"))
	current, err := election.Current(rig.Bounded(t), client, name)
	require.NoError(t, err)
	require.Equal(t, a+" too", current.Value)
	require.NoError(t, l.Transfer(rig.Bounded(t), b))
	leads := <-next
	require.NotNil(t, leads)
	for seen, err := range election.Observe(rig.Bounded(t), client, name) {
		require.NoError(t, err)
		require.EqualValues(t, leads.Token(), seen.Revision)
		break
	}
	require.NoError(t, leads.Resign(rig.Bounded(t)))
	require.NoError(t, election.Run(rig.Bounded(t), s, "role", election.Options{}, func(context.Context, fence.Token) error { return nil }))
}

// The other roles of SECURITY.md, and a user without a role, can do what that page says and no more.
func TestRecipe_keepsOthersOut(t *testing.T) {
	t.Parallel()
	srv := start(t)
	srv.add(t, "nobody")
	s := newSession(t, srv.as(t, "worker"), lease.Options{})
	l, err := election.Campaign(rig.Bounded(t), s, "role", election.Options{Value: "here"})
	require.NoError(t, err)

	for _, user := range []string{"viewer", "nobody", "nightly"} {
		t.Run(user, func(t *testing.T) {
			client := srv.as(t, user)
			theirs := newSession(t, client, lease.Options{}) // needs no permission
			_, err := theirs.TryLock(rig.Bounded(t), "free")
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			require.ErrorContains(t, err, `lock "free"`)
			_, err = election.Campaign(rig.Bounded(t), theirs, "role", election.Options{})
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			_, err = client.Revoke(rig.Bounded(t), s.Status().LeaseID)
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			_, err = client.KeepAliveOnce(rig.Bounded(t), s.Status().LeaseID)
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			_, err = client.Delete(rig.Bounded(t), l.Key())
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			current, err := election.Current(rig.Bounded(t), client, "jobs/role")
			if user != "viewer" {
				require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
				return
			}
			require.NoError(t, err)
			require.EqualValues(t, l.Token(), current.Revision)
			all, err := election.Candidates(rig.Bounded(t), client, "jobs/role")
			require.NoError(t, err)
			require.Len(t, all, 1)
			for seen, err := range election.Observe(rig.Bounded(t), client, "jobs/role") {
				require.NoError(t, err)
				require.Equal(t, "here", seen.Value)
				break
			}
		})
	}
	_, err = srv.as(t, "worker").Get(rig.Bounded(t), "other/key")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	near := rig.NewSession(t, srv.as(t, "nightly"), lease.Options{})
	require.NoError(t, rig.MustLock(t, near, "jobs/nightly").Unlock(rig.Bounded(t)))
	require.NoError(t, rig.MustLock(t, near, "jobs/nightly/eu").Unlock(rig.Bounded(t)))
	_, err = near.TryLock(rig.Bounded(t), "jobs/nightly-2")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.NoError(t, context.Cause(l.Context()))
	require.NoError(t, l.Resign(rig.Bounded(t)))
}

// attachedTo has an operator attach a key to the session's lease while it holds a lock. etcd then refuses further locks and
// the revocation. The errors say why, and Close deletes the session's own keys.
func attachedTo(t *testing.T, srv *server, s *lease.Session) {
	t.Helper()
	l := rig.MustLock(t, s, "held")
	require.NoError(t, second(srv.root.Put(rig.Bounded(t), "foreign", "", clientv3.WithLease(s.Status().LeaseID))))
	err := second(s.Lock(rig.Bounded(t), "n"))
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, "to write every key attached to the session's lease")
	require.ErrorContains(t, s.Close(rig.Bounded(t)), "requires permission to write every key attached to it")
	left, err := srv.root.Get(rig.Bounded(t), l.Key(), clientv3.WithCountOnly())
	require.NoError(t, err)
	require.Zero(t, left.Count)
	require.NoError(t, second(srv.root.Revoke(rig.Bounded(t), s.Status().LeaseID)))
}

// etcd does not protect a lease without keys: a user without permission on our prefix can attach a key to it, and a
// user without any role can revoke it. That costs the session a new lease, but no acquisition fails. The lease's ID
// cannot be guessed. While a lock is held, other users can neither attach keys to the lease nor revoke nor list it.
func TestSession_idleLeaseIsAttacked(t *testing.T) {
	t.Parallel()
	srv := start(t)
	stranger, neighbour := srv.add(t, "stranger"), srv.add(t, "neighbour")
	require.NoError(t, second(srv.root.RoleAdd(rig.Bounded(t), "own")))
	require.NoError(t, second(srv.root.RoleGrantPermission(rig.Bounded(t), "own", "own", "", clientv3.PermissionType(clientv3.PermReadWrite))))
	require.NoError(t, second(srv.root.UserGrantRole(rig.Bounded(t), "neighbour", "own")))

	s := newSession(t, srv.as(t, "worker"), lease.Options{})
	seen := map[int64]bool{}
	for range 3 {
		_, err := stranger.Revoke(rig.Bounded(t), s.Status().LeaseID)
		require.NoError(t, err, "etcd allows it")
		require.NoError(t, rig.MustLock(t, s, "n").Unlock(rig.Bounded(t)))

		_, err = neighbour.Put(rig.Bounded(t), "own", "", clientv3.WithLease(s.Status().LeaseID))
		require.NoError(t, err, "etcd allows it")
		_, err = srv.as(t, "worker").KeepAliveOnce(rig.Bounded(t), s.Status().LeaseID)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		l := rig.MustLock(t, s, "n")
		id := s.Status().LeaseID
		require.False(t, seen[int64(id)>>16], "IDs are near each other")
		seen[int64(id)>>16] = true

		_, err = neighbour.Put(rig.Bounded(t), "own", "", clientv3.WithLease(id))
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		_, err = stranger.Revoke(rig.Bounded(t), id)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		_, err = stranger.Leases(rig.Bounded(t))
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.NoError(t, l.Err())
		require.NoError(t, l.Unlock(rig.Bounded(t)))
	}
	// A foreign key in the queue and the loss of a lock are logged, without keys and values.
	require.NoError(t, second(srv.root.Put(rig.Bounded(t), "jobs/n/stray", secret("a value", "put by hand"))))
	l := rig.MustLock(t, s, "n")
	require.NoError(t, second(srv.root.Delete(rig.Bounded(t), l.Key())))
	rig.RequireLost(t, rig.AwaitEnd(t, l.Context()), lease.ReasonKeyDeleted)
	// If a user may read all keys of all leases, etcd lists all leases to that user, here those without keys.
	require.NoError(t, second(srv.root.Delete(rig.Bounded(t), "own")))
	attachedTo(t, srv, newSession(t, srv.as(t, "worker"), lease.Options{}))
	leases, err := stranger.Leases(rig.Bounded(t))
	require.NoError(t, err, "etcd allows it")
	require.NotEmpty(t, leases.Leases)
}
