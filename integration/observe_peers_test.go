package integration_test

import (
	"bufio"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

// etcdctlElect is an "etcdctl elect" that runs.
type etcdctlElect struct {
	cmd    *exec.Cmd
	stdout chan string // by lines
}

func startEtcdctl(t *testing.T, path string, srv *etcdtest.Server, args ...string) *etcdctlElect {
	t.Helper()
	cmd := exec.CommandContext(bounded(t), path, append([]string{"--endpoints", srv.Endpoint()}, args...)...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	e := &etcdctlElect{cmd: cmd, stdout: make(chan string, 1000)}
	go func() {
		defer close(e.stdout)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			e.stdout <- lines.Text()
		}
	}()
	return e
}

// lines waits for the next lines of output.
func (e *etcdctlElect) lines(t *testing.T, n int) []string {
	t.Helper()
	var lines []string
	for range n {
		select {
		case line, ok := <-e.stdout:
			require.True(t, ok, "etcdctl has ended after %q", lines)
			lines = append(lines, line)
		case <-time.After(patience):
			require.FailNow(t, "etcdctl says nothing more", "after %q", lines)
		}
	}
	return lines
}

// interrupt ends it, which must have said nothing more: a leader resigns.
func (e *etcdctlElect) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, e.cmd.Process.Signal(os.Interrupt))
	for line := range e.stdout {
		require.FailNow(t, "etcdctl says more", line)
	}
	_ = e.cmd.Wait() // some versions take the interrupt for a failure
}

// What etcd's own code makes of a name agrees with what is seen of it.
func TestObserve_agreesWithEtcdsOwnElection(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	o := observe(t, client, "job")
	o.sees(t, noLeader)
	theirs := concurrency.NewElection(newEtcdSession(t, srv.Client(t)), "job")
	rival := concurrency.NewElection(newEtcdSession(t, srv.Client(t)), "job")
	watched := theirs.Observe(bounded(t))

	seen := func(value string) election.Leader {
		t.Helper()
		l := o.next(t)
		require.Equal(t, value, l.Value)
		resp := <-watched
		require.Len(t, resp.Kvs, 1)
		kv := resp.Kvs[0]
		require.Equal(t, election.Leader{
			Value: string(kv.Value), Key: string(kv.Key), Token: l.Token, Lease: clientv3.LeaseID(kv.Lease),
		}, l)
		require.Equal(t, kv.CreateRevision, l.Token.Revision())
		now, err := election.Current(bounded(t), client, "job")
		require.NoError(t, err)
		require.Equal(t, l, now)
		return l
	}
	require.NoError(t, theirs.Campaign(bounded(t), "a"))
	l := seen("a")
	require.Equal(t, theirs.Key(), l.Key)
	require.Equal(t, theirs.Rev(), l.Token.Revision())
	require.NoError(t, theirs.Proclaim(bounded(t), "b"))
	seen("b")
	won := make(chan error, 1)
	go func() { won <- rival.Campaign(bounded(t), "c") }()
	awaitQueue(t, srv, "job", 2)
	require.NoError(t, theirs.Resign(bounded(t)))
	require.Equal(t, "c", o.next(t).Value)
	require.Equal(t, "c", string((<-watched).Kvs[0].Value))
	require.NoError(t, <-won)
	require.NoError(t, rival.Resign(bounded(t)))
	o.sees(t, noLeader) // of which etcd's own says nothing
}

func TestObserve_agreesWithEtcdctl(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]func(testing.TB) string{
		"built":  etcdtest.Etcdctl,
		"debian": etcdtest.DebianEtcdctl,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := path(t)
			srv := etcdtest.Start(t, etcdtest.Options{})
			client := srv.Client(t)
			o := observe(t, client, "job")
			o.sees(t, noLeader)
			first := startEtcdctl(t, path, srv, "elect", "job", "proposal")
			l := o.next(t)
			require.Equal(t, []string{l.Key, l.Value}, first.lines(t, 2))
			require.Equal(t, "proposal", l.Value)
			listen := startEtcdctl(t, path, srv, "elect", "--listen", "job")
			require.Equal(t, []string{l.Key, l.Value}, listen.lines(t, 2))
			second := startEtcdctl(t, path, srv, "elect", "job", "the next")
			awaitQueue(t, srv, "job", 2)
			first.interrupt(t)
			l = o.next(t)
			require.Equal(t, []string{l.Key, l.Value}, second.lines(t, 2))
			require.Equal(t, []string{l.Key, l.Value}, listen.lines(t, 2))
			second.interrupt(t)
			o.sees(t, noLeader)
			listen.interrupt(t)
		})
	}
}
