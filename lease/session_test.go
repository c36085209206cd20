package lease_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// The error names the field, the value and the legal range, and nothing is sent.
func TestNewSession_refusesOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		opts lease.Options
		want string
	}{
		"TTL negative":        {lease.Options{TTL: -1}, "Options.TTL is -1ns, want 1s to 2500000h0m0s (0: 30s)"},
		"TTL too long":        {lease.Options{TTL: 9_000_000_001 * time.Second}, "Options.TTL is 2500000h0m1s, want 1s to 2500000h0m0s"},
		"TTL a part too long": {lease.Options{TTL: 9_000_000_000*time.Second + 1}, "Options.TTL is 2500000h0m0.000000001s, want 1s to 2500000h0m0s"},
		"margin negative":     {lease.Options{Margin: -time.Second}, "Options.Margin is -1s, want 0 to a third of the TTL, 10s"},
		"margin too long":     {lease.Options{TTL: 9 * time.Second, Margin: 3*time.Second + 1}, "Options.Margin is 3.000000001s, want 0 to a third of the TTL, 3s"},
		"margin by default":   {lease.Options{Margin: 30 * time.Second}, "Options.Margin is 30s, want 0 to a third of the TTL, 10s"},
		"prefix too long":     {lease.Options{Prefix: strings.Repeat("a", 1025)}, "Options.Prefix has 1025 bytes, want 0 to 1024"},
		"prefix not UTF-8":    {lease.Options{Prefix: "a\xff"}, `Options.Prefix is "a\xff", want UTF-8 without NUL`},
		"prefix with NUL":     {lease.Options{Prefix: "a\x00b"}, `Options.Prefix is "a\x00b", want UTF-8 without NUL`},
		"prefix reserved":     {lease.Options{Prefix: "a/~b/"}, `Options.Prefix is "a/~b/", want no part that begins with "~"`},
		"era":                 {lease.Options{Era: 32768}, "Options.Era is 32768, want 0 to 32767"},
		"owner":               {lease.Options{Owner: strings.Repeat("a", 4097)}, "Options.Owner has 4097 bytes, want 0 to 4096"},
	} {
		inBubble(t, name, func(t *testing.T) {
			srv := newServer(t)
			require.ErrorContains(t, second(lease.NewSession(t.Context(), srv.Client(t.Context()), tc.opts)), "lease: "+tc.want)
			require.ErrorContains(t, second(lease.Adopt(t.Context(), srv.Client(t.Context()), 1, tc.opts)), "lease: "+tc.want)
			require.Empty(t, srv.Calls(fakeetcd.Any))
		})
	}
}

func TestNewSession_takesTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{
			TTL: 9_000_000_000 * time.Second, Margin: 1, Era: 32767,
			Prefix: strings.Repeat("p", 1023) + "/", Owner: strings.Repeat("o", 4096),
		})
		require.Equal(t, 9_000_000_000*time.Second, e.s.Status().TTL)
		require.Equal(t, e.began.Add(9_000_000_000*time.Second-1), e.s.Status().Deadline)
		l := e.lock(t, strings.Repeat("n", 1024))
		require.Equal(t, uint16(32767), l.Token().Era())
		require.Positive(t, l.Token())
		require.Len(t, e.srv.Keys("p")[0].Value, 4096)
	})
}

func TestNewSession_defaults(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		st := e.s.Status()
		require.Equal(t, lease.StateHeld, st.State)
		require.NoError(t, st.Err)
		require.Equal(t, ttl, st.TTL)
		require.Equal(t, e.began.Add(usable), st.Deadline)
		require.Equal(t, e.leaseIDs()[0], st.LeaseID)
		l := e.lock(t, "a")
		require.Zero(t, l.Token().Era())
		require.Equal(t, "a", e.keys("")[0][:strings.Index(l.Key(), "/")])
		host, err := os.Hostname()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s/%d", host, os.Getpid()), string(e.srv.Keys("")[0].Value))
	})
}

func TestNewSession_withoutAClient(t *testing.T) {
	require.ErrorContains(t, second(lease.NewSession(t.Context(), nil, lease.Options{})), "lease: client is nil")
	_, err := lease.NewSession(t.Context(), &clientv3.Client{}, lease.Options{})
	require.EqualError(t, err, "lease: client.KV is nil, want a client of clientv3.New")
	require.ErrorContains(t, second(lease.Adopt(t.Context(), nil, 1, lease.Options{})), "lease: client is nil")
}

// NewSession ends with its context, and leaves nothing running. While etcd does not answer, it says so in its log.
func TestNewSession_isBoundedByItsContext(t *testing.T) {
	const told = `time=\S+ level=WARN msg="new session: etcd has not answered yet" waited=`
	for bound, logged := range map[time.Duration]string{
		4 * time.Second: "^$", 12 * time.Second: "^" + told + "5s\n$", time.Minute: "^" + told + "5s\n" + told + "35s\n$",
	} {
		inBubble(t, bound.String(), func(t *testing.T) {
			c := newServer(t).NewClient(t.Context())
			c.Cut()
			ctx, cancel := context.WithTimeoutCause(t.Context(), bound, errMine)
			defer cancel()
			var log strings.Builder
			began := time.Now()
			_, err := lease.NewSession(ctx, c.Client, lease.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.ErrorIs(t, err, errMine)
			require.ErrorContains(t, err, "lease: new session:")
			require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's cause, not an attempt's")
			require.Equal(t, bound, time.Since(began))
			require.GreaterOrEqual(t, len(c.Calls(fakeetcd.Grant)), min(2, 1+int(bound/(2*attempt))), "each attempt is bounded")

			c.Restore()
			c.Inject(fakeetcd.Grant, fakeetcd.Fault{Times: 1, Err: errDenied})
			require.ErrorContains(t, second(lease.NewSession(t.Context(), c.Client, lease.Options{})), "permission denied")
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Regexp(t, logged, log.String())
		})
	}
}

func TestAdopt_refuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		c := srv.NewClient(t.Context())
		require.EqualError(t, second(lease.Adopt(t.Context(), c.Client, 0, lease.Options{})), "lease: adopt: id is 0, want a lease's")
		require.Empty(t, srv.Calls(fakeetcd.Any))

		require.ErrorContains(t, second(lease.Adopt(t.Context(), c.Client, 0xabc, lease.Options{})), "lease: adopt lease abc: etcdserver: requested lease not found")
		c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCUserEmpty})
		require.EqualError(t, second(lease.Adopt(t.Context(), c.Client, 0xabc, lease.Options{})),
			"lease: adopt lease abc: etcdserver: user name is empty (the server requires authentication, and the client gives no user and password)")

		short, err := c.Grant(t.Context(), 5)
		require.NoError(t, err)
		_, err = lease.Adopt(t.Context(), c.Client, short.ID, lease.Options{Margin: 2 * time.Second})
		require.ErrorContains(t, err, "Options.Margin is 2s, want 0 to a third of the adopted lease's TTL, 1.666666666s")
	})
}

// A namespace around only some parts of the client is refused before anything is sent. Around all of them it works.
func TestNewSession_namespace(t *testing.T) {
	const prefix = "ns/"
	kv := func(c *clientv3.Client) { c.KV = namespace.NewKV(c.KV, prefix) }
	watcher := func(c *clientv3.Client) { c.Watcher = namespace.NewWatcher(c.Watcher, prefix) }
	leases := func(c *clientv3.Client) { c.Lease = namespace.NewLease(c.Lease, prefix) }
	for name, tc := range map[string]struct {
		wrap []func(*clientv3.Client)
		want string
	}{
		"all":            {[]func(*clientv3.Client){kv, watcher, leases}, ""},
		"a bare lease":   {[]func(*clientv3.Client){kv, watcher}, "lease: client: [KV Watcher] has a namespace and [Lease] has none"},
		"a bare watcher": {[]func(*clientv3.Client){kv, leases}, "lease: client: [KV Lease] has a namespace and [Watcher] has none"},
		"a bare KV":      {[]func(*clientv3.Client){leases}, "lease: client: [Lease] has a namespace and [KV Watcher] has none"},
	} {
		inBubble(t, name, func(t *testing.T) {
			srv := newServer(t)
			c := srv.NewClient(t.Context())
			for _, wrap := range tc.wrap {
				wrap(c.Client)
			}
			s, err := lease.NewSession(t.Context(), c.Client, lease.Options{})
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				require.Empty(t, srv.Leases())
				_, err = lease.Adopt(t.Context(), c.Client, 1, lease.Options{})
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			l, err := s.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, prefix+l.Key(), string(srv.Keys("")[0].Key))
			require.NoError(t, s.Close(t.Context()))
		})
	}
}

// startAdopted starts a session on a lease of 30 s that was granted ten seconds before.
func startAdopted(t *testing.T, prepare ...func(*fakeetcd.Client)) (*env, clientv3.LeaseID) {
	t.Helper()
	srv := newServer(t)
	c := srv.NewClient(t.Context())
	granted, err := c.Grant(t.Context(), 30)
	require.NoError(t, err)
	time.Sleep(third)
	e := &env{srv: srv, c: c, began: time.Now()}
	for _, do := range prepare {
		do(c)
	}
	e.s, err = lease.Adopt(t.Context(), c.Client, granted.ID, lease.Options{TTL: 7 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.s.Close(context.WithoutCancel(t.Context())) })
	return e, granted.ID
}

// The deadline is counted from the send of the renewal that Adopt made.
func TestAdopt_countsFromItsOwnRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t, faulty(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, After: time.Second}))
		require.Equal(t, time.Second, e.now())
		require.Equal(t, lease.Status{State: lease.StateHeld, LeaseID: id, TTL: ttl, Deadline: e.began.Add(usable)}, e.s.Status())
		e.at(third)
		require.Equal(t, third, e.sent(fakeetcd.KeepAliveOnce)[1])
		require.Empty(t, e.c.Calls(fakeetcd.Grant)[1:])
	})
}

// The member that answers may not know the client's auth token yet.
func TestAdopt_authenticatesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t, faulty(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCInvalidAuthToken}))
		require.Equal(t, id, e.s.Status().LeaseID)
	})
}

// Close deletes the locks' keys and leaves the lease.
func TestAdopt_Close_leavesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t)
		e.put(t, "its owner's", "", id)
		var locks []*lease.Lock
		for i := range 100 {
			locks = append(locks, e.lock(t, string(rune('À'+i))))
		}
		require.NoError(t, locks[0].Unlock(t.Context()))
		next := e.wait(t.Context(), locks[1].Name())
		require.NoError(t, e.s.Close(t.Context()))
		requireLost(t, receive(t, next).err, lease.ReasonSessionClosed)
		requireLost(t, context.Cause(locks[2].Context()), lease.ReasonSessionClosed)
		require.Equal(t, []string{"its owner's"}, e.keys(""))
		require.Equal(t, []clientv3.LeaseID{id}, e.leaseIDs())
		require.Empty(t, e.c.Calls(fakeetcd.Revoke))
		require.Zero(t, e.now())
	})
}

// On a lease that lives on, Close reports what it could not clean up: a key that it may not delete, and a request that
// may still arrive. It deletes everything else, and does not wait in vain.
func TestAdopt_Close_saysWhatMayBeLeft(t *testing.T) {
	for name, row := range map[string]struct {
		fault fakeetcd.Fault // when taking "b"
		want  string
		left  int // keys at the end
	}{
		"a request is late":     {fakeetcd.Fault{Before: ttl / 2, Late: true}, "may still put the key", 1},
		"a deletion is refused": {fakeetcd.Fault{Lose: fakeetcd.Answer}, "permission denied", 1},
	} {
		inBubble(t, name, func(t *testing.T) {
			e, _ := startAdopted(t)
			for i := range 10 {
				e.lock(t, fmt.Sprintf("a/%d", i))
			}
			row.fault.Match, row.fault.Times = touches("b/"), 1
			e.c.Inject(fakeetcd.Txn, row.fault)
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: errDenied, Match: touches("b/")})
			require.ErrorIs(t, second(e.s.TryLock(timeout(t, time.Second), "b")), context.DeadlineExceeded)
			if row.fault.Late {
				e.c.Reset()
			}
			require.ErrorContains(t, e.s.Close(t.Context()), row.want)
			require.Equal(t, time.Second, e.now())
			require.Empty(t, e.keys("a"))
			e.at(ttl / 2)
			require.Len(t, e.keys("b"), row.left)
		})
	}
}

// Behind a black hole Close ends with its context, and says what it could not do.
func TestAdopt_Close_isBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := startAdopted(t)
		e.lock(t, "a")
		e.c.Cut()
		require.ErrorIs(t, e.s.Close(timeout(t, 3*time.Second)), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, e.now())
	})
}

// lockLostToUs returns a lock on an adopted lease that our session has lost and its owner keeps alive.
func lockLostToUs(t *testing.T, e *env, id clientv3.LeaseID) *lease.Lock {
	t.Helper()
	alive, err := e.srv.NewClient(t.Context()).KeepAlive(t.Context(), id)
	require.NoError(t, err)
	go func() {
		for range alive {
		}
	}()
	l := e.lock(t, "a")
	e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
	e.at(usable)
	e.c.Reset()
	return l
}

// Unlock deletes the key of a lost handle even if the owner keeps the lease alive.
func TestAdopt_Unlock_afterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t)
		l := lockLostToUs(t, e, id)
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
		e.at(10 * ttl)
		require.Equal(t, []string{l.Key()}, e.keys("a"))
		requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
		synctest.Wait()
		require.Empty(t, e.keys("a"))
		require.Equal(t, []clientv3.LeaseID{id}, e.leaseIDs())

		again := e.lock(t, "a")
		require.Greater(t, again.Token(), l.Token())
		require.Equal(t, 7*time.Second, e.s.Status().TTL, "the session has a lease of its own now")
		require.NoError(t, e.s.Close(t.Context()))
		require.Equal(t, []clientv3.LeaseID{id}, e.leaseIDs())
	})
}

// A lost request does not make Close leave a key on a lease that its owner keeps alive.
func TestAdopt_closeRetriesTheKeysOfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t)
		l := lockLostToUs(t, e, id)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request})
		requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
		synctest.Wait()
		e.lock(t, "b")
		require.NoError(t, e.s.Close(t.Context()))
		require.Empty(t, e.keys(""))
	})
}
