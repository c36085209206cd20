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
