package integration_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// countRequests counts what is sent from now on.
func countRequests(in *faults.Interceptor) *atomic.Int64 {
	sent := new(atomic.Int64)
	in.OnRequest(func(string, any) { sent.Add(1) })
	return sent
}

// neverCalled is a function under a lock that must not be obtained.
func neverCalled(t *testing.T) func(context.Context, fence.Token) error {
	t.Helper()
	return func(context.Context, fence.Token) error {
		assert.Fail(t, "the function was called")
		return nil
	}
}

// TestNewSession_badOptions checks that each bad option is refused by name, with nothing sent.
func TestNewSession_badOptions(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
	sent := countRequests(in)
	const most = 9_000_000_000 * time.Second
	for _, row := range []struct {
		field string
		opts  lease.Options
	}{
		{"Options.TTL", lease.Options{TTL: -1}},
		{"Options.TTL", lease.Options{TTL: most + 1}},
		{"Options.TTL", lease.Options{TTL: most + time.Second}},
		{"Options.Margin", lease.Options{Margin: -1}},
		{"Options.Margin", lease.Options{Margin: 30 * time.Second}}, // the default TTL
		{"Options.Margin", lease.Options{TTL: 5 * time.Second, Margin: 5 * time.Second}},
		{"Options.Margin", lease.Options{TTL: 5 * time.Second, Margin: time.Minute}},
		{"Options.Prefix", lease.Options{Prefix: strings.Repeat("p", 1025)}},
		{"Options.Prefix", lease.Options{Prefix: "p\x00"}},
		{"Options.Prefix", lease.Options{Prefix: "p\xff"}},
		{"Options.Owner", lease.Options{Owner: strings.Repeat("o", 4<<10+1)}},
		{"Options.Era", lease.Options{Era: 32768}},
		{"Options.Era", lease.Options{Era: 65535}},
	} {
		s, err := lease.NewSession(bounded(t), client, row.opts)
		require.ErrorContains(t, err, row.field)
		require.Nil(t, s)
		s, err = lease.Adopt(bounded(t), client, 1, row.opts)
		require.ErrorContains(t, err, row.field)
		require.Nil(t, s)
	}
	_, err := lease.NewSession(bounded(t), nil, lease.Options{})
	require.ErrorContains(t, err, "client")
	_, err = lease.Adopt(bounded(t), nil, 1, lease.Options{})
	require.ErrorContains(t, err, "client")
	_, err = lease.Adopt(bounded(t), client, clientv3.NoLease, lease.Options{})
	require.ErrorContains(t, err, "id")
	require.Zero(t, sent.Load())
}

// TestSession_badInput checks the same for names, for the options of one lock, and for Do's function.
func TestSession_badInput(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	sent := countRequests(rig.in)
	refused := func(name string, opts lease.LockOptions, field string) {
		t.Helper()
		l, err := rig.LockWith(bounded(t), name, opts)
		require.ErrorContains(t, err, field)
		require.Nil(t, l)
		l, err = rig.TryLockWith(bounded(t), name, opts)
		require.ErrorContains(t, err, field)
		require.Nil(t, l)
		require.ErrorContains(t, rig.DoWith(bounded(t), name, opts, neverCalled(t)), field)
	}
	for _, name := range []string{
		"", strings.Repeat("n", 1025), "/a", "a/", "/", "a//b", "a\x00b", "a\xffb",
	} {
		refused(name, lease.LockOptions{}, "name ")
	}
	refused("n", lease.LockOptions{Owner: strings.Repeat("o", 4<<10+1)}, "LockOptions.Owner")
	refused("n", lease.LockOptions{MaxHold: -1}, "LockOptions.MaxHold")
	require.ErrorContains(t, rig.Do(bounded(t), "n", nil), "fn")
	require.Zero(t, sent.Load())
}

// TestSession_extremeInput checks that what is just within the bounds works.
func TestSession_extremeInput(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	longest := strings.Repeat("o", 4<<10)
	rig := newLockRig(t, srv, lease.Options{
		TTL: 9_000_000_000 * time.Second, Margin: time.Hour, Prefix: strings.Repeat("p", 1024), Owner: longest, Era: 32767,
	})
	require.Equal(t, 9_000_000_000*time.Second, rig.Status().TTL)
	name := strings.Repeat("é", 512)
	l := mustLock(t, rig.Session, name)
	require.Equal(t, name, l.Name())
	require.Equal(t, uint16(32767), l.Token().Era())
	_, err := newSession(t, srv.Client(t), lease.Options{Prefix: strings.Repeat("p", 1024)}).TryLock(bounded(t), name)
	var locked *lease.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, longest, locked.Owner)
	require.Less(t, len(err.Error()), 8<<10, "an error is for people")
	require.NoError(t, l.Unlock(bounded(t)))
}

// TestNewSession_ttl checks the default and the rounding.
func TestNewSession_ttl(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	for asked, granted := range map[time.Duration]time.Duration{
		0:                       30 * time.Second,
		1:                       minTTL, // raised to 1 s by us and to its smallest by the server
		time.Second:             minTTL,
		3*time.Second + 1:       4 * time.Second,
		3500 * time.Millisecond: 4 * time.Second,
		4 * time.Second:         4 * time.Second,
	} {
		s := newSession(t, client, lease.Options{TTL: asked})
		st := s.Status()
		require.Equal(t, granted, st.TTL, "asked for %v", asked)
		resp, err := client.TimeToLive(bounded(t), st.LeaseID)
		require.NoError(t, err)
		require.Equal(t, int64(granted/time.Second), resp.GrantedTTL)
	}
}
