package mix

import (
	"cmp"
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

// bare returns a restoration in which nothing runs.
func bare() *restoration {
	return &restoration{run: &run{report: newReport(1)}, live: map[*held]*party{}}
}

func TestWitness_judgesErrors(t *testing.T) {
	stale := &fence.StaleError{Resource: "a", Token: 5, Highest: 9}
	reported := &lease.RestoredError{Highest: 9, Revision: 6, Err: stale}
	gone := &lease.LostError{Reason: lease.ReasonLeaseGone}
	for name, row := range map[string]struct {
		back   bool
		era    uint16
		failed error // of the acquisition; nil: a write was refused
		why    error // what Explain says
		err    error // of the handle
		ended  bool
		want   fate
		wrong  int
	}{
		"failed, the restore":                {back: true, failed: reported, want: told},
		"failed, the restore, with a loss":   {back: true, failed: &lease.LostError{Reason: lease.ReasonRevisionWentBack}, want: told},
		"failed, a restore that was not":     {failed: reported, wrong: 1},
		"failed, a restore of the next era":  {back: true, era: nextEra, failed: reported, wrong: 1},
		"failed, a loss":                     {back: true, failed: fmt.Errorf("lock: %w", gone), want: lost},
		"failed, anything else":              {back: true, failed: errors.New("unavailable"), wrong: 1},
		"failed, its time was over":          {back: true, failed: context.Canceled, ended: true},
		"refused, the restore":               {back: true, why: reported, want: explained},
		"refused, a restore that was not":    {why: reported, wrong: 1},
		"refused, a restore of the next era": {back: true, era: nextEra, why: reported, wrong: 1},
		"refused, a loss":                    {back: true, why: stale, err: gone, want: lost},
		"refused, and it holds the lock":     {back: true, why: stale, wrong: 1},
		"refused, its time was over":         {back: true, why: stale, ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := bare()
			r.back = row.back
			w := &witness{party: &party{restoration: r, client: &client{era: row.era}}, worker: &worker{name: "w"}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if row.ended {
				cancel()
			}
			var got fate
			if row.failed != nil {
				got = w.failed(ctx, "a", row.failed)
			} else {
				got = w.refused(ctx, &held{
					err: func() error { return row.err }, explain: func(context.Context, error) error { return row.why },
				}, stale)
			}
			require.Equal(t, row.want, got)
			require.Len(t, r.report.Violations, row.wrong)
			require.Equal(t, row.want == told, r.report.Counts[restoredTold] == 1)
			require.Equal(t, row.want == explained, r.report.Counts[restoredWhy] == 1)
		})
	}
}

func TestRestoration_findsAHandleThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := bare()
		p := r.newParty(&client{name: "client", ttl: ttl}, "")
		ends, end := context.WithCancelCause(t.Context())
		released, unlock := context.WithCancelCause(t.Context())
		lives, stop := context.WithCancel(t.Context())
		defer stop()
		time.AfterFunc(time.Second, func() { end(&lease.LostError{Reason: lease.ReasonRevisionWentBack}) })
		time.AfterFunc(time.Second, func() { unlock(lease.ErrUnlocked) })
		live := map[*held]*party{{ctx: ends, resource: "a"}: p, {ctx: lives, resource: "c"}: p}
		for range 20 { // some of them are looked at after the time was over
			live[&held{ctx: released, resource: "b"}] = p
		}
		r.awaitEnds(t.Context(), live)
		require.Len(t, r.report.Violations, 1)
		require.Contains(t, r.report.Violations[0].Text, "client for c is live 5s after")
		require.Equal(t, 1, r.report.Counts[restoredEnded], "the others were released")
		require.Equal(t, 1, r.report.Counts[restoredSaid])
	})
}

// What the resources did before the restore is checked too, but does not count as done after it.
func TestRestoration_judge(t *testing.T) {
	r := bare()
	var all []history.Event
	for id, e := range []history.Event{
		{Name: "a", Verb: history.Claim, Token: 9, Outcome: history.OK},
		{Name: "a", Verb: history.Claim, Token: 8, Outcome: history.Refused},
		{Name: "a" + history.UnfencedMark, Verb: history.Write, Token: 9, Outcome: history.OK},
		{Name: "a" + history.UnfencedMark, Verb: history.Write, Token: 8, Outcome: history.OK},
		{Kind: history.Fault, Name: restoredFault},
		{Name: "a", Verb: history.Claim, Token: 5, Outcome: history.Refused},
		{Name: "a" + history.UnfencedMark, Verb: history.Write, Token: 5, Outcome: history.OK},
		{Name: "a", Verb: history.Write, Token: 5, Outcome: history.OK},
	} {
		e.Kind, e.Request = cmp.Or(e.Kind, history.Apply), int64(id)
		all = append(all, e)
	}
	r.judge(all)
	require.Equal(t, 1, r.report.Counts[restoredFenced])
	require.Equal(t, 1, r.report.Counts[restoredStale])
	require.Len(t, r.report.Violations, 1)
	require.Equal(t, "I1", r.report.Violations[0].Invariant)
}

func TestRestoration_findsWrongTokens(t *testing.T) {
	r := bare()
	first, newcomer := r.newParty(&client{name: "first"}, ""), r.newParty(&client{name: "newcomer"}, "")
	took := func(p *party, name string, token fence.Token, wrong string) {
		t.Helper()
		r.report.Violations = nil
		p.took(&held{resource: name, token: token})
		if wrong == "" {
			require.Empty(t, r.report.Violations)
			return
		}
		require.Len(t, r.report.Violations, 1)
		require.Contains(t, r.report.Violations[0].Text, wrong)
	}
	took(first, "a", 900, "")
	require.EqualValues(t, 900, first.granted)
	took(newcomer, "a", 120, "") // it saw nothing before the restore
	took(first, "b", 121, "")    // of another name: its key may be older
	took(first, "b", 901, "")
	took(first, "a", 122, "without an error that reports the restore")
}
