package interop_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// interopPeer is a way to take a lock: leasefence's or one of etcd's own.
type interopPeer struct {
	name string
	lock func(ctx context.Context, name string) (interopHold, error)
}

// interopHold is a held lock.
type interopHold struct {
	key    string
	unlock func(ctx context.Context) error
}

// heldBy makes an interopHold of the results of a call that takes a lock.
func heldBy[L interface{ Key() string }](l L, err error, unlock func(L, context.Context) error) (interopHold, error) {
	if err != nil {
		return interopHold{}, err
	}
	return interopHold{l.Key(), func(ctx context.Context) error { return unlock(l, ctx) }}, nil
}

func sessionPeer(s *lease.Session) interopPeer {
	return interopPeer{"leasefence", func(ctx context.Context, name string) (interopHold, error) {
		l, err := s.Lock(ctx, name)
		return heldBy(l, err, (*lease.Lock).Unlock)
	}}
}

// readerPeer takes its locks on its own session.
func readerPeer(tb testing.TB, srv *etcdtest.Server) interopPeer {
	tb.Helper()
	s := rig.NewSession(tb, srv.Client(tb), lease.Options{})
	return interopPeer{"reader", func(ctx context.Context, name string) (interopHold, error) {
		l, err := s.RLock(ctx, name)
		return heldBy(l, err, (*lease.ReadLock).Unlock)
	}}
}

// mutexPeer takes each lock on a new session: the mutexes of one session do not exclude each other.
func mutexPeer(tb testing.TB, srv *etcdtest.Server) interopPeer {
	tb.Helper()
	client := srv.Client(tb)
	return interopPeer{"concurrency.Mutex", func(ctx context.Context, name string) (interopHold, error) {
		m := concurrency.NewMutex(newEtcdSession(tb, client), name)
		return heldBy(m, m.Lock(ctx), (*concurrency.Mutex).Unlock)
	}}
}

// etcdctlPeer runs "etcdctl lock", or "etcdctl elect" with a value. The command prints the key and waits for a signal.
func etcdctlPeer(path string, srv *etcdtest.Server, verb string, words ...string) interopPeer {
	return interopPeer{"etcdctl " + verb, func(ctx context.Context, name string) (interopHold, error) {
		// By default etcdctl gives up if its lease's first renewal is not answered within three seconds.
		args := append([]string{"--endpoints", srv.Endpoint(), "--dial-timeout", rig.Patience.String(), verb, "--", name}, words...)
		if verb == "lock" {
			args = slices.Insert(args, 5, "--ttl=60") // as "elect" has
		}
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // then etcdctl leaves the queue
		cmd.WaitDelay = rig.Patience
		var stderr strings.Builder
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return interopHold{}, err
		}
		if err := cmd.Start(); err != nil {
			return interopHold{}, err
		}
		key, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			return interopHold{}, fmt.Errorf("%w, and no key: %s", errors.Join(err, cmd.Wait()), stderr.String())
		}
		return interopHold{key: strings.TrimSpace(key), unlock: func(context.Context) error {
			return errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait())
		}}, nil
	}}
}

// contender is a peer that has entered a queue; a goroutine waits for the lock.
type contender struct {
	peer    interopPeer
	granted chan struct{} // closed when lock has returned
	held    interopHold   // set before granted is closed
	err     error         // set before granted is closed
	over    bool          // unlock was called
}

// enterQueue returns when the peer's key is in the queue.
func enterQueue(t *testing.T, srv *etcdtest.Server, p interopPeer, name string) *contender {
	t.Helper()
	ctx, cancel := context.WithCancel(rig.Bounded(t))
	c := &contender{peer: p, granted: make(chan struct{})}
	before := len(srv.Keys(t, name+"/"))
	go func() {
		defer close(c.granted)
		c.held, c.err = p.lock(ctx, name)
	}()
	t.Cleanup(func() {
		cancel()
		<-c.granted
		if c.err == nil && !c.over {
			_ = c.held.unlock(context.WithoutCancel(ctx)) // to end a process; the rest ends with the server
		}
	})
	var keys []string
	rig.Eventually(t, func() bool {
		if keys = srv.Keys(t, name+"/"); len(keys) != before+1 && c.done() {
			require.NoError(t, c.err, p.name)
		}
		return len(keys) == before+1
	}, func() string { return fmt.Sprintf("%s has not entered: %q", p.name, keys) })
	return c
}

// done reports whether the peer was granted the lock, or has failed.
func (c *contender) done() bool {
	select {
	case <-c.granted:
		return true
	default:
		return false
	}
}

// requireWaiting fails if the lock is granted soon. A wrong grant takes a few milliseconds; requireWaiting waits much
// longer.
func (c *contender) requireWaiting(t *testing.T) {
	t.Helper()
	select {
	case <-c.granted:
		require.NoError(t, c.err)
		require.FailNow(t, "granted out of turn", c.peer.name)
	case <-time.After(150 * time.Millisecond):
	}
}

// await returns when the lock is granted.
func (c *contender) await(t *testing.T) interopHold {
	t.Helper()
	rig.Await(t, c.granted, "not granted: "+c.peer.name)
	require.NoError(t, c.err, c.peer.name)
	return c.held
}

func (c *contender) unlock(t *testing.T) {
	t.Helper()
	c.over = true
	require.NoError(t, c.held.unlock(rig.Bounded(t)), c.peer.name)
}

// newEtcdSession returns one of etcd's own sessions, which the test's cleanup closes.
func newEtcdSession(tb testing.TB, client *clientv3.Client, opts ...concurrency.SessionOption) *concurrency.Session {
	tb.Helper()
	s, err := concurrency.NewSession(client, opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = s.Close() }) // the test may have closed it, or its lease
	return s
}
