package election_test

import (
	"context"
	"fmt"
	"os"
	"strings"
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

// join is another process on p's server.
func (p *process) join(t *testing.T) *process {
	t.Helper()
	return newProcess(t, p.srv, lease.Options{})
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

// bubble runs a test in its own bubble, with a process.
func bubble(t *testing.T, test func(*testing.T, *process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newProcess(t, newServer(t), lease.Options{})) })
}

// bubbleOf is bubble for a sub-test.
func bubbleOf(t *testing.T, name string, test func(*testing.T, *process)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, test) })
}

// inBubble runs a sub-test in its own bubble.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// Campaign and Run refuse bad input with an error that names the field, the value and the legal range. Nothing is sent.
func TestRun_refusesBadInput(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		n := len(p.c.Calls(fakeetcd.Any))
		lead := func(context.Context, fence.Token) error { panic("lead was called") }
		run := func(s *lease.Session, name string, options ...election.RunOption) error {
			return election.Run(t.Context(), s, name, election.Options{}, lead, options...)
		}
		for want, refused := range map[string]struct {
			s    *lease.Session
			name string
		}{
			"election: session is nil, want a lease.Session": {nil, "x"},
			"election: name is empty, want 1 to 1024 bytes":  {p.s, ""},
			`election: name "a//b" contains "//"`:            {p.s, "a//b"},
		} {
			l, err := election.Campaign(t.Context(), refused.s, refused.name, election.Options{})
			require.EqualError(t, err, want)
			require.Nil(t, l)
			require.EqualError(t, run(refused.s, refused.name), want)
		}
		for want, option := range map[string]election.RunOption{
			"election: option 2 of 2 is nil, want a RunOption":            nil,
			"election: WithStopTimeout is -1s, want 0 (for ever) or more": election.WithStopTimeout(-time.Second, nil),
		} {
			require.EqualError(t, run(p.s, "x", election.WithRejoin(), option), want)
		}
		lead = nil
		require.EqualError(t, run(p.s, "x"), "election: lead is nil, want a function")
		require.Len(t, p.c.Calls(fakeetcd.Any), n)
	})
}

// Current and Candidates return a value as it was set, byte by byte. A value or a priority out of range is refused with
// the field's name and the legal range, and then nothing has changed.
func FuzzCampaign_values(f *testing.F) {
	f.Add("10.0.0.1:80", "10.0.0.2:80", 0)
	f.Add("", "", 1)
	f.Add("\xff\x00", "c5-", 9999)
	f.Add("/", "x/", 10000)
	f.Add("a", strings.Repeat("v", 4096), -1)
	f.Add(strings.Repeat("v", 4097), "a", 0)
	f.Add("a", strings.Repeat("v", 4097), 5)
	f.Fuzz(func(t *testing.T, value, next string, priority int) {
		synctest.Test(t, func(t *testing.T) {
			const owner = "the session's"
			p := newProcess(t, newServer(t), lease.Options{Owner: owner})
			l, err := election.Campaign(t.Context(), p.s, "x", election.Options{Value: value, Priority: priority})
			switch {
			case len(value) > 4096:
				require.EqualError(t, err, fmt.Sprintf("election: Options.Value has %d bytes, want 0 to 4096", len(value)))
			case priority < 0 || priority > 9999:
				require.EqualError(t, err, fmt.Sprintf("election: Options.Priority is %d, want 0 to 9999", priority))
			default:
				require.NoError(t, err)
			}
			if err != nil {
				_, err = election.Current(t.Context(), p.c.Client, "x")
				require.ErrorIs(t, err, election.ErrNoLeader)
				return
			}
			if value == "" {
				value = owner
			}
			leader := election.Leader{Value: value, Revision: l.Token().Revision(), Key: l.Key(), Lease: p.s.Status().LeaseID}
			requireLeader(t, p, leader)

			err = l.Proclaim(t.Context(), next)
			if len(next) > 4096 {
				require.EqualError(t, err, fmt.Sprintf("election: value has %d bytes, want 0 to 4096", len(next)))
			} else {
				require.NoError(t, err)
				leader.Value = next
			}
			requireLeader(t, p, leader)
		})
	})
}

// requireLeader checks the leader with Current and with Candidates.
func requireLeader(t *testing.T, p *process, want election.Leader) {
	t.Helper()
	got, err := election.Current(t.Context(), p.c.Client, "x")
	require.NoError(t, err)
	require.Equal(t, want, got)
	all, err := election.Candidates(t.Context(), p.c.Client, "x")
	require.NoError(t, err)
	require.Equal(t, []election.Leader{want}, all)
}
