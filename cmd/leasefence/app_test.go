package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A deadline that ends before --command-timeout, such as one of a single attempt, is an error, too.
func TestAsk_returnsAnyDeadline(t *testing.T) {
	t.Parallel()
	a := newApp()
	a.etcd.endpoints, a.etcd.dialTimeout, a.etcd.commandTimeout = []string{"127.0.0.1:1"}, time.Minute, time.Minute
	err := a.ask(func(context.Context, *clientv3.Client) error { return context.DeadlineExceeded })
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
