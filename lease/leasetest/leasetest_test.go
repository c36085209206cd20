package leasetest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leasetest"
)

// requireHolder requires that want holds the name; "" is nobody.
func requireHolder(t *testing.T, srv *leasetest.Server, name, want string) {
	t.Helper()
	got, ok := srv.Holder(name)
	require.Equal(t, want, got)
	require.Equal(t, want != "", ok)
}

func TestSession_Expire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		s, next := srv.Session(t, lease.Options{Owner: "a"}), srv.Session(t, lease.Options{Owner: "b"})
		l, err := s.Lock(t.Context(), "x")
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, s.Expire(t.Context()))
		require.GreaterOrEqual(t, time.Since(began), 20*time.Second)
		require.ErrorContains(t, l.Err(), lease.ReasonDeadlinePassed.String())
		requireHolder(t, srv, "x", "")
		_, err = next.Lock(t.Context(), "x")
		require.NoError(t, err)
		requireHolder(t, srv, "x", "b")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, next.Expire(ctx), context.DeadlineExceeded)
		require.NoError(t, next.Close(t.Context()), "Expire has ended the partition")
	})
}

func TestSession_Revoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		s := srv.Session(t, lease.Options{})
		l, err := s.Lock(t.Context(), "x")
		require.NoError(t, err)
		time.Sleep(time.Second) // until the session watches the key
		began := time.Now()
		s.Revoke()
		<-l.Context().Done()
		require.Zero(t, time.Since(began))
		require.ErrorContains(t, l.Err(), lease.ReasonLeaseGone.String())
		s.Revoke()
		_, err = s.Lock(t.Context(), "x")
		require.NoError(t, err, "the session takes another lease")
	})
}

// A test may close a session that is cut off, as a service does that stops while etcd cannot be reached.
func TestSession_Partition_closedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		s := srv.Session(t, lease.Options{})
		s.Partition()
		require.ErrorContains(t, s.Close(t.Context()), "expires by itself")
	})
}

// Outside of a bubble the server uses the real clock, and a client has etcd's own API too.
func TestServer_withoutABubble(t *testing.T) {
	srv := leasetest.New(t)
	c := srv.Client(t)
	_, err := c.Put(t.Context(), "k", "v")
	require.NoError(t, err)
	s := srv.Session(t, lease.Options{Owner: "a", TTL: 2 * time.Second})
	require.NoError(t, s.RDo(t.Context(), "x", func(context.Context, fence.ReadToken) error {
		requireHolder(t, srv, "x", "a")
		return nil
	}))
	require.Empty(t, func() string { owner, _ := srv.Holder("k"); return owner }())
}
