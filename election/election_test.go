package election_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// process is a session with a client, and so a network, of its own. All that one test makes are in one bubble.
type process struct {
	srv *fakeetcd.Server
	c   *fakeetcd.Client
	s   *lease.Session
}

func newServer(t *testing.T) *fakeetcd.Server {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return srv
}

func newProcess(t *testing.T, srv *fakeetcd.Server, opts lease.Options) *process {
	t.Helper()
	p := &process{srv: srv, c: srv.NewClient(t.Context())}
	s, err := lease.NewSession(t.Context(), p.c.Client, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) }) // what it cannot reach expires
	p.s = s
	return p
}

// newPair is two processes on one server.
func newPair(t *testing.T) (p, other *process) {
	t.Helper()
	srv := newServer(t)
	return newProcess(t, srv, lease.Options{}), newProcess(t, srv, lease.Options{})
}

// leads has the process lead, which must be possible at once.
func (p *process) leads(t *testing.T, opts election.Options) *election.Leadership {
	t.Helper()
	c := p.campaign(t.Context(), opts)
	synctest.Wait()
	return c.won(t)
}

// candidate is a campaign under way.
type candidate struct {
	l    *election.Leadership
	err  error
	done chan struct{}
}

// campaign begins to wait.
func (p *process) campaign(ctx context.Context, opts election.Options) *candidate {
	c := &candidate{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.l, c.err = election.Campaign(ctx, p.s, "x", opts)
	}()
	return c
}

// waits begins to wait behind all others, long enough that its key is guarded.
func (p *process) waits(t *testing.T, opts election.Options) *candidate {
	t.Helper()
	c := p.campaign(t.Context(), opts)
	time.Sleep(time.Second)
	c.requireWaiting(t)
	return c
}

func (c *candidate) waiting() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (c *candidate) requireWaiting(t *testing.T) {
	t.Helper()
	synctest.Wait()
	require.True(t, c.waiting(), "it does not wait any more")
}

// won is the leadership of a campaign that is won by now.
func (c *candidate) won(t *testing.T) *election.Leadership {
	t.Helper()
	synctest.Wait()
	require.False(t, c.waiting(), "it still waits")
	require.NoError(t, c.err)
	require.NoError(t, c.l.Err())
	return c.l
}

// requireOrder has each of the candidates lead in turn, with larger and larger tokens, once last has resigned.
func requireOrder(t *testing.T, last *election.Leadership, order ...*candidate) {
	t.Helper()
	time.Sleep(time.Second) // those who have stepped back are settled
	tokens := []fence.Token{last.Token()}
	for i, c := range order {
		require.NoError(t, last.Resign(t.Context()))
		last = c.won(t)
		require.Greater(t, last.Token(), tokens[i])
		tokens = append(tokens, last.Token())
		for _, later := range order[i+1:] {
			later.requireWaiting(t)
		}
	}
	require.NoError(t, last.Resign(t.Context()))
}

// Tests run in bubbles: a goroutine that one leaves behind makes it fail.
func TestMain(m *testing.M) {
	// The host's boot clock runs on while a bubble's stands still, by which deadlines would come out early.
	clock.System = clock.Clock{}
	os.Exit(m.Run())
}

// inBubble runs a sub-test in a bubble of its own.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
