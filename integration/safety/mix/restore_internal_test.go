package mix

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

func TestRestored_siftFindsLowerTokens(t *testing.T) {
	apply := func(at time.Duration, name string, verb history.Verb, token fence.Token, outcome history.Outcome) history.Event {
		return history.Event{At: at, Kind: history.Apply, Name: name, Verb: verb, Token: token, Outcome: outcome}
	}
	const killed = 10
	for name, row := range map[string]struct {
		events []history.Event
		want   Restored
		wrong  int
	}{
		"lower and refused": {[]history.Event{
			apply(1, "a", history.Claim, 9, history.OK), apply(11, "a", history.Claim, 5, history.Refused),
		}, Restored{Refused: 1}, 0},
		"lower and accepted": {[]history.Event{
			apply(1, "a", history.Claim, 9, history.OK), apply(11, "a", history.Claim, 5, history.OK),
			apply(12, "a", history.Write, 5, history.OK),
		}, Restored{Lower: 2}, 2},
		"lower than a later one that was refused": {[]history.Event{
			apply(1, "a", history.Claim, 9, history.Refused), apply(11, "a", history.Claim, 5, history.OK),
		}, Restored{}, 0},
		"lower before the restore": {[]history.Event{
			apply(1, "a", history.Write, 9, history.OK), apply(2, "a", history.Write, 5, history.OK),
			apply(3, "a", history.Write, 5, history.Refused),
		}, Restored{Lower: 1}, 1},
		"of another resource, or a read": {[]history.Event{
			apply(1, "a", history.Write, 9, history.OK), apply(11, "b", history.Write, 5, history.OK),
			apply(12, "a", history.Read, 5, history.OK),
		}, Restored{}, 0},
		"of a reader, and lower than a reader's": {[]history.Event{
			apply(1, "a", history.Claim, 5, history.OK), apply(2, "a", history.ClaimRead, 9, history.OK), apply(3, "a", history.ClaimRead, 7, history.OK),
			apply(11, "a", history.Claim, 8, history.OK), apply(12, "a", history.ClaimRead, 4, history.OK),
		}, Restored{Lower: 2}, 2},
		"taken by the control": {[]history.Event{
			apply(1, "a"+history.UnfencedMark, history.Write, 9, history.OK),
			apply(11, "a"+history.UnfencedMark, history.Write, 5, history.OK),
		}, Restored{ControlLower: 1}, 0},
		"of the same tenure": {[]history.Event{
			apply(1, "a", history.Write, 9, history.OK), apply(11, "a", history.Write, 9, history.OK),
		}, Restored{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got Restored
			require.Len(t, got.sift(row.events, killed), row.wrong)
			require.Equal(t, row.want, got)
		})
	}
}

func TestRestored_metNeedsEachWayOfNoticing(t *testing.T) {
	enough := Restored{Ended: 1, Told: 1, Explained: 1, ControlLower: 1, Recovered: 1}
	require.True(t, enough.met())
	for _, lower := range []func(*Restored){
		func(r *Restored) { r.Ended-- }, func(r *Restored) { r.Told-- }, func(r *Restored) { r.Explained-- },
		func(r *Restored) { r.ControlLower-- }, func(r *Restored) { r.Recovered-- },
	} {
		r := enough
		lower(&r)
		require.False(t, r.met(), "%+v", r)
	}
}

// stub is a handle with fixed answers.
type stub struct {
	ctx   context.Context //nolint:containedctx // it is the handle
	token fence.Token
	err   error
	why   error // what Explain returns; nil: its argument
}

func (s *stub) Token() fence.Token       { return s.token }
func (s *stub) Key() string              { return "" }
func (s *stub) Context() context.Context { return s.ctx }
func (s *stub) Err() error               { return s.err }
func (s *stub) Explain(_ context.Context, err error) error {
	if s.why != nil {
		return s.why
	}
	return err
}

func TestWitness_judgesErrors(t *testing.T) {
	stale := &fence.StaleError{Resource: "a", Token: 5, Highest: 9}
	reported := &lease.RestoredError{Highest: 9, Revision: 6, Err: stale}
	gone := &lease.LostError{Reason: lease.ReasonLeaseGone}
	for name, row := range map[string]struct {
		back   bool
		era    uint16
		failed error // of the acquisition; nil: a write was refused
		handle stub
		ended  bool
		want   fate
	}{
		"failed, the restore":                {back: true, failed: reported, want: restored},
		"failed, the restore, with a loss":   {back: true, failed: &lease.LostError{Reason: lease.ReasonRevisionWentBack}, want: restored},
		"failed, a restore that was not":     {failed: reported, want: wronged},
		"failed, a restore of the next era":  {back: true, era: nextEra, failed: reported, want: wronged},
		"failed, a loss":                     {back: true, failed: fmt.Errorf("lock: %w", gone), want: lost},
		"failed, anything else":              {back: true, failed: errors.New("unavailable"), want: wronged},
		"failed, its time was over":          {back: true, failed: context.Canceled, ended: true, want: nothing},
		"refused, the restore":               {back: true, handle: stub{why: reported}, want: explained},
		"refused, a restore that was not":    {handle: stub{why: reported}, want: wronged},
		"refused, a restore of the next era": {back: true, era: nextEra, handle: stub{why: reported}, want: wronged},
		"refused, a loss":                    {back: true, handle: stub{err: gone}, want: lost},
		"refused, and it holds the lock":     {back: true, want: wronged},
		"refused, its time was over":         {back: true, ended: true, want: nothing},
	} {
		t.Run(name, func(t *testing.T) {
			r := &restoration{back: row.back}
			w := &witness{party: &party{restoration: r, era: row.era}, worker: &worker{name: "w"}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if row.ended {
				cancel()
			}
			var got fate
			if row.failed != nil {
				got = w.failed(ctx, "a", row.failed)
			} else {
				got = w.refused(ctx, "a", &row.handle, stale)
			}
			require.Equal(t, row.want, got)
			require.Equal(t, row.want == wronged, len(r.violations) == 1, "%q", r.violations)
			require.Equal(t, row.want == restored, r.report.Told == 1)
			require.Equal(t, row.want == explained, r.report.Explained == 1)
		})
	}
}

func TestRestoration_findsAHandleThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &restoration{}
		p := &party{restoration: r, name: "client", ttl: 2 * time.Second}
		ends, end := context.WithCancelCause(t.Context())
		released, unlock := context.WithCancelCause(t.Context())
		lives, stop := context.WithCancel(t.Context())
		defer stop()
		time.AfterFunc(time.Second, func() { end(&lease.LostError{Reason: lease.ReasonRevisionWentBack}) })
		time.AfterFunc(time.Second, func() { unlock(lease.ErrUnlocked) })
		r.awaitEnds(t.Context(), []*tenant{
			{hold: &stub{ctx: ends}, party: p, name: "a"},
			{hold: &stub{ctx: released}, party: p, name: "b"},
			{hold: &stub{ctx: lives}, party: p, name: "c"},
		})
		require.Len(t, r.violations, 1)
		require.Contains(t, r.violations[0], "client for c is live 5s after")
		require.Equal(t, 1, r.report.Ended, "the other one was released")
		require.Len(t, r.ended, 1)
	})
}

func TestRestoration_findsATokenThatIsNotOfTheNextEra(t *testing.T) {
	next, err := fence.NewToken(nextEra, 7)
	require.NoError(t, err)
	r := &restoration{live: map[hold]*tenant{}}
	before := &party{restoration: r, tokens: map[string]fence.Token{}}
	after := &party{restoration: r, tokens: map[string]fence.Token{}, era: nextEra}
	r.took(before, "a", &stub{token: 900})
	r.took(after, "a", &stub{token: next})
	require.Empty(t, r.violations)
	require.EqualValues(t, 900, before.granted)
	require.Len(t, r.live, 2)
	r.took(after, "b", &stub{token: 901})
	require.Len(t, r.violations, 1)
	r.took(before, "b", &stub{token: next + 1})
	r.took(after, "b", &stub{token: next})
	require.Len(t, r.violations, 2)
}

func TestRestoration_findsALowerTokenOfOneParty(t *testing.T) {
	r := &restoration{live: map[hold]*tenant{}}
	first := &party{restoration: r, tokens: map[string]fence.Token{}}
	newcomer := &party{restoration: r, tokens: map[string]fence.Token{}}
	r.took(first, "a", &stub{token: 900})
	r.took(newcomer, "a", &stub{token: 120}) // it saw nothing before the restore
	r.took(first, "b", &stub{token: 121})    // of another name: its key may be older
	r.took(first, "b", &stub{token: 901})
	require.Empty(t, r.violations)
	r.took(first, "a", &stub{token: 122})
	require.Len(t, r.violations, 1)
	require.Contains(t, r.violations[0], "without an error that reports the restore")
}
