package docs_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leasetest"
)

// service is the service that docs/testing.md tests.
type service struct{ leading atomic.Bool }

func (s *service) leads() bool { return s.leading.Load() }

func start(t *testing.T, session *lease.Session) *service {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s, done := &service{}, make(chan struct{})
	go func() {
		defer close(done)
		_ = election.Run(ctx, session, "service", election.Options{}, func(ctx context.Context, _ fence.Token) error {
			s.leading.Store(true)
			defer s.leading.Store(false)
			<-ctx.Done()
			return nil
		}, election.WithRejoin())
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return s
}

func TestService_stepsBackWhenItIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		s := srv.Session(t, lease.Options{Owner: "a"})
		svc := start(t, s.Session) // campaigns for "service"
		synctest.Wait()            // all that can happen now has happened
		require.True(t, svc.leads())

		s.Partition()
		time.Sleep(30 * time.Second) // of the bubble
		synctest.Wait()
		require.False(t, svc.leads())
		_, somebody := srv.Holder("service")
		require.False(t, somebody)

		s.Heal()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.True(t, svc.leads())
	})
}

func TestLedger_refusesTheLateWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		a, b := srv.Session(t, lease.Options{}), srv.Session(t, lease.Options{})
		var book ledger
		first, err := a.Lock(t.Context(), "ledger")
		require.NoError(t, err)
		require.NoError(t, a.Expire(t.Context()))

		second, err := b.Lock(t.Context(), "ledger")
		require.NoError(t, err)
		require.NoError(t, book.Append(second.Context(), second.Token(), "second"))
		require.ErrorIs(t, book.Append(first.Context(), first.Token(), "late"), fence.ErrStale)
	})
}
