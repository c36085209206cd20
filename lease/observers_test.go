package lease_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
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
		bubbleOf(t, verb, func(t *testing.T, e *env) {
			ctx, client := timeout(t, time.Hour), e.c.Client
			sent := len(e.c.Calls(fakeetcd.Any))
			require.EqualError(t, call(ctx, nil, "a"), "lease: client is nil, want an etcd client")
			if verb == "list" {
				require.EqualError(t, call(ctx, client, "\xff"), `lease: prefix is "\xff", want UTF-8 without NUL`)
				require.EqualError(t, call(ctx, client, strings.Repeat("a", 2305)), "lease: prefix has 2305 bytes, want 0 to 2304")
			} else {
				require.EqualError(t, call(ctx, client, ""), "lease: name is empty, want 1 to 2304 bytes")
				require.ErrorContains(t, call(ctx, client, "a/~b/"), `lease: name "a/~b/" ends with "/"`)
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

// Whatever prefix a session has, its locks are found by their full names.
func TestObservers_anyPrefix(t *testing.T) {
	for _, prefix := range []string{"", "jobs/", "/jobs/", "/", "jobs//", strings.Repeat("p", 1024)} {
		inBubble(t, fmt.Sprintf("%.10q", prefix), func(t *testing.T) {
			e := start(t, lease.Options{Prefix: prefix})
			name := strings.Repeat("n", 1024)
			full := prefix + name
			l := e.lock(t, name)
			require.Len(t, e.inspect(t, full).Holders, 1)
			for q, err := range lease.Watch(t.Context(), e.c.Client, full) {
				require.NoError(t, err)
				require.Len(t, q.Holders, 1)
				break
			}
			n := 0
			for q, err := range lease.List(t.Context(), e.c.Client, prefix) {
				require.NoError(t, err)
				require.Equal(t, full, q.Name)
				n++
			}
			require.Equal(t, 1, n)
			e.release(t, full, lease.ReleaseOptions{})
			e.at(time.Second)
			require.ErrorIs(t, l.Err(), lease.ErrAskedToRelease)
			require.NoError(t, l.Unlock(t.Context()))

			// The names of slots and of a tree's nodes are longer.
			permit, node := e.permit(t, name, 1024), e.tree(t, strings.Repeat("n/", 63)+name[:1024-2*63])
			for _, ctx := range []context.Context{permit.Context(), node.Context()} {
				full, _ := fence.LockFromContext(ctx)
				require.Len(t, e.inspect(t, full).Holders, 1)
				require.Len(t, e.list(t, full), 1)
			}
		})
	}
}
