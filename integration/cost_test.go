package integration_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

func TestLock_uncontendedCostsTwoCommits(t *testing.T) {
	t.Parallel()
	const pairs = 100
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
	s := newSession(t, client, lease.Options{})
	committed := func() (entries, revision int64) {
		resp, err := client.Status(bounded(t), srv.Endpoint())
		require.NoError(t, err)
		return int64(resp.RaftIndex), resp.Header.Revision
	}
	requests := func() (txns, others int) {
		for _, method := range []string{faults.Range, faults.Put, faults.DeleteRange, faults.Watch, faults.TimeToLive} {
			others += in.Sent(method)
		}
		return in.Sent(faults.Txn), others
	}

	for name, pair := range map[string]func(context.Context) error{
		"Lock": func(ctx context.Context) error {
			l, err := s.Lock(ctx, "job")
			if err != nil {
				return err
			}
			return l.Unlock(ctx)
		},
		"TryLock": func(ctx context.Context) error {
			l, err := s.TryLock(ctx, "job")
			if err != nil {
				return err
			}
			return l.Unlock(ctx)
		},
		"Do": func(ctx context.Context) error {
			return s.Do(ctx, "job", func(context.Context, fence.Token) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The server commits an entry of its own now and then, which can only add: the least of some rounds counts.
			least := int64(-1)
			for range 3 {
				entries, revision := committed()
				txns, others := requests()
				for range pairs {
					require.NoError(t, pair(bounded(t)))
				}
				entries2, revision2 := committed()
				txns2, others2 := requests()
				require.Equal(t, int64(2*pairs), revision2-revision, "revisions")
				require.Equal(t, 2*pairs, txns2-txns, "transactions sent")
				require.Equal(t, others, others2, "other requests sent")
				if n := entries2 - entries; least < 0 || n < least {
					least = n
				}
			}
			require.Equal(t, int64(2*pairs), least, "entries of the server's log")
		})
	}
}

// Until the next compaction, each read of a queue passes every key that ever stood in it, at 25 to 30 ns each in the
// server: a key of its own for each hold makes a lock slower with every hold.
func TestLock_usesItsKeysAgain(t *testing.T) {
	t.Parallel()
	const (
		contenders = 3
		holds      = 50 // of each
	)
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	var (
		wg   sync.WaitGroup
		keys sync.Map
		errs [contenders]error
	)
	ctx := bounded(t)
	for i := range contenders {
		wg.Go(func() {
			for range holds {
				l, err := s.Lock(ctx, "job")
				if err != nil {
					errs[i] = err
					return
				}
				keys.Store(l.Key(), true)
				if errs[i] = l.Unlock(ctx); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	used := 0
	for range keys.Range {
		used++
	}
	require.LessOrEqual(t, used, contenders)
}
