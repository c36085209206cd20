package load_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// A lock that nobody else wants costs two transactions, and two entries of the server's log.
func TestLock_uncontendedCostsTwoCommits(t *testing.T) {
	t.Parallel()
	const pairs = 20
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
	s := rig.NewSession(t, client, lease.Options{})
	cost := func(of func()) (entries, revisions int64, txns, others int) {
		count := func() (int64, int64, int, int) {
			resp, err := client.Status(rig.Bounded(t), srv.Endpoint())
			require.NoError(t, err)
			other := 0
			for _, method := range []string{faults.Range, faults.Put, faults.DeleteRange, faults.Watch, faults.TimeToLive} {
				other += in.Sent(method)
			}
			return int64(resp.RaftIndex), resp.Header.Revision, in.Sent(faults.Txn), other
		}
		e, r, n, o := count()
		of()
		entries, revisions, txns, others = count()
		return entries - e, revisions - r, txns - n, others - o
	}
	free := func(l *lease.Lock, err error) error {
		if err != nil {
			return err
		}
		return l.Unlock(rig.Bounded(t))
	}
	for name, pair := range map[string]func() error{
		"Lock":    func() error { return free(s.Lock(rig.Bounded(t), "job")) },
		"TryLock": func() error { return free(s.TryLock(rig.Bounded(t), "job")) },
		"Do": func() error {
			return s.Do(rig.Bounded(t), "job", func(context.Context, fence.Token) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The server commits an entry of its own now and then, and on a busy machine a hold may last long enough to be
			// watched. Both can only add, so the least of some rounds counts.
			least := [4]int64{1 << 62, 1 << 62, 1 << 62, 1 << 62}
			for range 10 {
				entries, revisions, txns, others := cost(func() {
					for range pairs {
						require.NoError(t, pair())
					}
				})
				for i, n := range [4]int64{entries, revisions, int64(txns), int64(others)} {
					least[i] = min(least[i], n)
				}
			}
			require.Equal(t, [4]int64{2 * pairs, 2 * pairs, 2 * pairs, 0}, least,
				"entries of the server's log, revisions, transactions, other requests")
		})
	}
}
