package election_test

import (
	"context"
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

// Bad input is refused by each call in the same words, which name the field, what it is and what it may be, and
// nothing is sent.
func TestCampaign_refusesBadInput(t *testing.T) {
	long := strings.Repeat("n", 1025)
	for name, tc := range map[string]struct {
		noSession bool
		name      string
		opts      election.Options
		want      string
	}{
		"no session":         {noSession: true, name: "x", want: "election: session is nil, want a lease.Session"},
		"no name":            {name: "", want: "election: name is empty, want 1 to 1024 bytes"},
		"long name":          {name: long, want: "election: name has 1025 bytes, want 1 to 1024"},
		"not UTF-8":          {name: "a\xff", want: `election: name "a\xff" is not valid UTF-8`},
		"NUL":                {name: "a\x00", want: `election: name "a\x00" contains NUL`},
		"slash at the front": {name: "/a", want: `election: name "/a" begins or ends with "/"`},
		"slash at the end":   {name: "a/", want: `election: name "a/" begins or ends with "/"`},
		"empty part":         {name: "a//b", want: `election: name "a//b" contains "//"`},
		"long value": {
			name: "x", opts: election.Options{Value: strings.Repeat("v", 4097)},
			want: "election: Options.Value has 4097 bytes, want 0 to 4096",
		},
		"negative priority": {
			name: "x", opts: election.Options{Priority: -1},
			want: "election: Options.Priority is -1, want 0 to 9999",
		},
		"high priority": {
			name: "x", opts: election.Options{Priority: 10000},
			want: "election: Options.Priority is 10000, want 0 to 9999",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(t, newServer(t), lease.Options{})
				n := len(p.c.Calls(fakeetcd.Any))
				session := p.s
				if tc.noSession {
					session = nil
				}
				l, err := election.Campaign(t.Context(), session, tc.name, tc.opts)
				require.EqualError(t, err, tc.want)
				require.Nil(t, l)
				err = election.Run(t.Context(), session, tc.name, tc.opts, func(context.Context, fence.Token) error {
					panic("it does not lead")
				})
				require.EqualError(t, err, tc.want)
				require.Len(t, p.c.Calls(fakeetcd.Any), n)
			})
		})
	}
}

func TestRun_refusesBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
		n := len(p.c.Calls(fakeetcd.Any))
		lead := func(context.Context, fence.Token) error { panic("it does not lead") }
		require.EqualError(t, election.Run(t.Context(), p.s, "x", election.Options{}, nil), "election: lead is nil, want a function")
		for want, option := range map[string]election.RunOption{
			"election: option 2 of 2 is nil, want a RunOption":            nil,
			"election: WithStopTimeout is -1s, want 0 (for ever) or more": election.WithStopTimeout(-time.Second, nil),
		} {
			err := election.Run(t.Context(), p.s, "x", election.Options{}, lead, election.WithRejoin(), option)
			require.EqualError(t, err, want)
		}
		require.Len(t, p.c.Calls(fakeetcd.Any), n)
	})
}

// The bounds themselves are fine.
func TestCampaign_takesTheLargestInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		p := newProcess(t, srv, lease.Options{})
		value := strings.Repeat("v", 4096)
		for _, name := range []string{strings.Repeat("n", 1024), "a/b", "a b", "\n"} {
			l, err := election.Campaign(t.Context(), p.s, name, election.Options{Value: value, Priority: 9999})
			require.NoError(t, err)
			require.Equal(t, name, l.Name())
			require.Equal(t, value, string(srv.Keys(name + "/")[0].Value))
			require.NoError(t, l.Proclaim(t.Context(), strings.ToUpper(value)))
			require.NoError(t, l.Resign(t.Context()))
		}
	})
}

func TestLeadership_Proclaim_refusesBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
		l := p.leads(t, election.Options{Value: "v"})
		n := len(p.c.Calls(fakeetcd.Any))
		err := l.Proclaim(t.Context(), strings.Repeat("v", 4097))
		require.EqualError(t, err, "election: value has 4097 bytes, want 0 to 4096")
		require.Len(t, p.c.Calls(fakeetcd.Any), n)
		require.NoError(t, l.Err())
		require.Equal(t, []string{"v"}, values(p.srv))
	})
}
