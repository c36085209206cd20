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

// process is a session with its own client, and so its own network. All processes of a test are in one bubble.
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
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) }) // a lease that it cannot revoke expires
	p.s = s
	return p
}

// newPair is two processes on one server.
func newPair(t *testing.T) (p, other *process) {
	t.Helper()
	srv := newServer(t)
	return newProcess(t, srv, lease.Options{}), newProcess(t, srv, lease.Options{})
}

// leads makes the process lead, which must be possible at once.
func (p *process) leads(t *testing.T, opts election.Options) *election.Leadership {
	t.Helper()
	c := p.campaign(t.Context(), opts)
	synctest.Wait()
	return c.won(t)
}

// candidate is a campaign under way.
type candidate struct {
	*action
	l *election.Leadership
}

// campaign begins a campaign.
func (p *process) campaign(ctx context.Context, opts election.Options) *candidate {
	c := new(candidate)
	c.action = inBackground(func() (err error) {
		c.l, err = election.Campaign(ctx, p.s, "x", opts)
		return err
	})
	return c
}

// waits begins a campaign behind all others, and returns when its key is watched.
func (p *process) waits(t *testing.T, opts election.Options) *candidate {
	t.Helper()
	c := p.campaign(t.Context(), opts)
	time.Sleep(time.Second)
	c.requireWaiting(t)
	return c
}

// won returns the leadership of a campaign that must be won by now.
func (c *candidate) won(t *testing.T) *election.Leadership {
	t.Helper()
	synctest.Wait()
	require.False(t, c.waiting(), "the candidate still waits")
	require.NoError(t, c.err)
	require.NoError(t, c.l.Err())
	return c.l
}

// requireOrder checks that after last has resigned each of the candidates leads in turn, with growing tokens.
func requireOrder(t *testing.T, last *election.Leadership, order ...*candidate) {
	t.Helper()
	time.Sleep(time.Second) // until candidates that were passed have entered again
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

// Tests run in bubbles, so a goroutine that a test leaves behind makes it fail.
func TestMain(m *testing.M) {
	// The host's boot clock also runs while a bubble's clock stands still, so deadlines would be early.
	clock.System = clock.Clock{}
	os.Exit(m.Run())
}

// inBubble runs a sub-test in its own bubble.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
