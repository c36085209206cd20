package etcdfence_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

const shapeLease = 0x77

// shapeServer starts a server with a lease of a known ID and one key, which is the first write.
func shapeServer(t *testing.T, key, value string) (*etcdtest.Server, *clientv3.Client) {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	require.NoError(t, client.Sync(rig.Bounded(t)))
	leases := pb.NewLeaseClient(client.ActiveConnection())
	grant := &pb.LeaseGrantRequest{ID: shapeLease, TTL: 3600}
	require.NoError(t, second(leases.LeaseGrant(rig.Bounded(t), grant)))
	require.NoError(t, second(client.Put(rig.Bounded(t), key, value, clientv3.WithLease(shapeLease))))
	return srv, client
}

// shapeHolder holds the first key of a shapeServer.
type shapeHolder struct{}

func (shapeHolder) Token() fence.Token { return 2 }
func (shapeHolder) IsOwner() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision("locks/n/77-0"), "=", 2)
}

// twins are two servers with the same contents and one client of each. Random calls go to both servers, to one of them
// through a fenced KV.
type twins struct {
	plain, gated   *etcdtest.Server
	without, under *clientv3.Client
}

func newTwins(t *testing.T, key, value string) (*twins, *requests) {
	t.Helper()
	var w twins
	w.plain, w.without = shapeServer(t, key, value)
	w.gated, w.under = shapeServer(t, key, value)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return &w, &requests{rand.New(rand.NewPCG(seed, 1)), shapeLease, func() int64 { return w.plain.Revision(t) - 1 }}
}

// steps is the length of a random test.
const steps = 600

// compare makes random calls with and without the gate. Refusals by the server are among them.
func (w *twins) compare(t *testing.T, r *requests, kv clientv3.KV) {
	t.Helper()
	ctx, refused := fence.NewContext(rig.Bounded(t), 41), 0
	for range steps {
		c := r.call()
		want, wantErr := shape(c(ctx, w.without))
		got, err := shape(c(ctx, kv))
		require.Equal(t, wantErr, err)
		require.Equal(t, want, got)
		require.Equal(t, w.plain.Revision(t), w.gated.Revision(t))
		if err != nil {
			refused++
		}
	}
	require.Equal(t, fmt.Sprint(w.plain.KeyValues(t, "")), fmt.Sprint(w.gated.KeyValues(t, "")))
	require.Positive(t, refused)
	require.Less(t, refused, steps/2, "the server must accept most calls, or the test compares little")
}

// While the lock is held, all answers are as without the gate.
func TestNewKV_answersAsWithout(t *testing.T) {
	t.Parallel()
	w, r := newTwins(t, "locks/n/77-0", "")
	w.compare(t, r, heldBy(t, w.under, shapeHolder{}))
}

// For the holder of the newest token, all answers are as without the gate.
func TestMarks_answersAsWithout(t *testing.T) {
	t.Parallel()
	w, r := newTwins(t, "fence/r", "41 0")
	w.compare(t, r, markedBy(t, w.under, "r"))
}

// The answer to a write that raises the mark is as without the gate, too, except the revision if the write changes
// nothing else.
func TestMarks_answersAsWithout_raising(t *testing.T) {
	t.Parallel()
	w, r := newTwins(t, "fence/r", "1 0")
	kv, ctx := markedBy(t, w.under, "r"), rig.Bounded(t)
	token, same := fence.Token(2), 0
	for range steps {
		c, before := r.call(), w.plain.Revision(t)
		want, wantErr := shape(c(ctx, w.without))
		got, err := shape(c(fence.NewContext(ctx, token), kv))
		require.Equal(t, wantErr, err)
		changed := w.plain.Revision(t) != before
		if changed {
			require.Equal(t, want, got)
			same++
		}
		if changed || w.gated.Revision(t) != before { // the mark alone
			require.Equal(t, fmt.Sprintf("%d 0", token), string(w.gated.KeyValues(t, "fence/r")[0].Value))
			token++
		}
		for w.plain.Revision(t) < w.gated.Revision(t) {
			require.NoError(t, second(w.without.Put(ctx, "fence/r", "")))
		}
		require.Equal(t, w.plain.Revision(t), w.gated.Revision(t))
	}
	require.Greater(t, same, steps/10)
	require.Equal(t, fmt.Sprint(w.plain.KeyValues(t, "d/")), fmt.Sprint(w.gated.KeyValues(t, "d/")))
}

var shapeNumbers = regexp.MustCompile(`(cluster_id|member_id|raft_term):\d+`)

// shape returns an answer without the numbers that differ between servers.
func shape(answer string, err error) (string, error) {
	return shapeNumbers.ReplaceAllString(answer, "$1:any"), err
}
