package etcd

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
)

// For the tests in package etcd_test.

// Copies is the number of copies of each request.
func (a *Attempt) Copies() int { return a.copies }

// WithCopies makes the attempt send n copies.
func (a *Attempt) WithCopies(n int) *Attempt {
	a.copies = n
	return a
}

// Within makes the attempt end also with life, and after bound.
func (a *Attempt) Within(life context.Context, bound time.Duration) *Attempt {
	a.life, a.bound = life, bound
	return a
}

// Registered counts the contexts and functions that wait for the end of ctx, made by [context.WithCancel], or of the
// present stream.
func (s *Streams) Registered(ctx context.Context) (n int) {
	for _, ctx := range []context.Context{ctx, s.stream.life} {
		n += reflect.ValueOf(ctx).Elem().FieldByName("children").Len()
	}
	return n
}

// Dialed reports whether s has made a connection of its own.
func (s *KeepAlive) Dialed() bool { return s.own != nil }

// If other goroutines compute on all processors, each yield takes long, so gather yields only a few times.
func TestLine_gather_whereOthersCompute(t *testing.T) {
	var over atomic.Bool
	defer over.Store(true)
	var rounds atomic.Int64
	var started, ended sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		started.Add(1)
		ended.Go(func() {
			for started.Done(); !over.Load(); {
				rounds.Add(1)
			}
		})
	}
	started.Wait()
	l := NewLine(nil, LineOptions{})
	for range 4 {
		require.Less(t, l.gather(8), yields/4)
	}
	over.Store(true)
	ended.Wait()
}

// gather waits while transactions keep coming, even for longer in all than it waits for none.
func TestLine_gather_whileTheyKeepComing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // then the two yield in turn
	synctest.Test(t, func(t *testing.T) {
		l := NewLine(nil, LineOptions{})
		go func() {
			for range 8 {
				for range yields / 2 {
					runtime.Gosched()
				}
				l.mu.Lock()
				l.waiting = append(l.waiting, new(caller))
				l.mu.Unlock()
			}
		}()
		require.Greater(t, l.gather(8), 2*yields)
		require.Len(t, l.waiting, 8)
	})
}

// wrapped is a KVClient that a client's owner has put around the client's. Its field kc has the name of etcd's own.
type wrapped struct {
	pb.KVClient
	kc pb.KVClient
}

func wrap(c *clientv3.Client) clientv3.KV {
	return clientv3.NewKVFromKVClient(&wrapped{kc: pb.NewKVClient(c.ActiveConnection())}, c)
}

// A line's messages bypass a client's KV only if that is the client's own.
func TestRawOf(t *testing.T) {
	dial := func(t *testing.T) *clientv3.Client {
		t.Helper()
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}}) // nobody listens there
		require.NoError(t, err)
		t.Cleanup(func() { client.Close() }) //nolint:errcheck,gosec // the test is over
		return client
	}
	other := dial(t)
	for name, row := range map[string]struct {
		change func(*clientv3.Client)
		raw    bool
	}{
		"its own":           {func(*clientv3.Client) {}, true},
		"made once more":    {func(c *clientv3.Client) { c.KV = clientv3.NewKV(c) }, true},
		"a namespace":       {func(c *clientv3.Client) { c.KV = namespace.NewKV(c.KV, "x/") }, false},
		"another KVClient":  {func(c *clientv3.Client) { c.KV = wrap(c) }, false},
		"no KVClient":       {func(c *clientv3.Client) { c.KV = clientv3.NewKVFromKVClient(nil, c) }, false},
		"the KV of another": {func(c *clientv3.Client) { c.KV = other.KV }, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := dial(t)
			row.change(client)
			require.Equal(t, row.raw, rawOf(client) != nil)
		})
	}
	without := clientv3.NewCtxClient(t.Context())
	without.KV = clientv3.NewKVFromKVClient(&wrapped{}, without)
	require.Nil(t, rawOf(without))
}

// A probe tries each observer's prefix as often as another's: one whose permission is gone learns it as soon as any.
func TestLookout_probesAllPrefixesAlike(t *testing.T) {
	t.Parallel()
	l := &Lookout{Conn: &Conn{shared: new(shared)}, looks: map[*Look]struct{}{{Prefix: "a/"}: {}, {Prefix: "b/"}: {}, {Prefix: "c/"}: {}}}
	probed := map[string]int{}
	for range 30_000 {
		prefix, _ := l.furthest()
		probed[prefix]++
	}
	for _, prefix := range []string{"a/", "b/", "c/"} {
		require.InDelta(t, 10_000, probed[prefix], 1000, prefix)
	}
}
