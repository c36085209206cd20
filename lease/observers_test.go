package lease_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// What needs a client alone refuses bad input before it sends anything, reports a failure that will not pass, and
// retries the others until its context ends.
func TestObservers_errors(t *testing.T) {
	for verb, call := range map[string]func(context.Context, *clientv3.Client, string) error{
		"inspect": func(ctx context.Context, c *clientv3.Client, name string) error {
			return second(lease.Inspect(ctx, c, name))
		},
		"list": func(ctx context.Context, c *clientv3.Client, prefix string) (err error) {
			for _, last := range lease.List(ctx, c, prefix) {
				err = last
			}
			return err
		},
		"watch": func(ctx context.Context, c *clientv3.Client, name string) (err error) {
			for _, last := range lease.Watch(ctx, c, name) {
				err = last
			}
			return err
		},
		"release": func(ctx context.Context, c *clientv3.Client, name string) error {
			return lease.Release(ctx, c, name, lease.ReleaseOptions{})
		},
	} {
		inBubble(t, verb, func(t *testing.T) {
			e := start(t, lease.Options{})
			ctx, client := timeout(t, time.Hour), e.c.Client
			sent := len(e.c.Calls(fakeetcd.Any))
			require.EqualError(t, call(ctx, nil, "a"), "lease: client is nil, want an etcd client")
			if verb == "list" {
				require.EqualError(t, call(ctx, client, "\xff"), `lease: prefix is "\xff", want UTF-8 without NUL`)
				require.EqualError(t, call(ctx, client, strings.Repeat("a", 2049)), "lease: prefix has 2049 bytes, want 0 to 2048")
			} else {
				require.EqualError(t, call(ctx, client, ""), "lease: name is empty, want 1 to 1024 bytes")
				require.ErrorContains(t, call(ctx, client, "a/~/b"), `lease: name "a//b" contains "//"`)
			}
			require.Len(t, e.c.Calls(fakeetcd.Any), sent, "nothing is sent")

			e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, Err: errDenied})
			require.ErrorContains(t, call(ctx, client, "a"), "lease: "+verb+` "a": etcdserver: permission denied`)
			e.c.Cut()
			err := call(timeout(t, time.Minute), client, "a")
			if verb == "watch" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.GreaterOrEqual(t, e.now(), time.Minute)
			e.c.Restore()
		})
	}
}
