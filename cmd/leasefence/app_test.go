package main

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leasetest"
)

// leasefence ends soon after a signal although etcd hangs.
func TestSession_closesSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, client := newApp(), leasetest.New(t).Client(t)
		a.stderr = io.Discard
		s, err := lease.NewSession(t.Context(), client.Client, lease.Options{})
		require.NoError(t, err)
		client.Partition()
		began := time.Now()
		(&session{app: a, Session: s}).close()
		require.Equal(t, cleanUp, time.Since(began))
	})
}

// A deadline that ends before --command-timeout, such as one of a single attempt, is an error, too.
func TestAsk_returnsAnyDeadline(t *testing.T) {
	t.Parallel()
	a := newApp()
	a.etcd.endpoints, a.etcd.dialTimeout, a.etcd.commandTimeout = []string{"127.0.0.1:1"}, time.Minute, time.Minute
	err := a.ask(func(context.Context, *clientv3.Client) error { return context.DeadlineExceeded })
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
