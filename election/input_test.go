package election_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// Campaign and Run refuse bad input with an error that names the field, the value and the legal range. Nothing is sent.
func TestRun_refusesBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
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
