package election_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// Run ends when its context ends or its session is closed, also while it does not lead, and leaves the queue.
func TestRun_endsWhileItDoesNotLead(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(t *testing.T, p *process, r *role)
		want error
	}{
		"ctx ended": {func(_ *testing.T, _ *process, r *role) { r.stop(errMine) }, errMine},
		"session closed": {func(t *testing.T, p *process, _ *role) {
			t.Helper()
			began := time.Now()
			require.NoError(t, p.s.Close(t.Context()))
			require.Zero(t, time.Since(began), "Close has nothing to wait for")
		}, lease.ErrClosed},
	} {
		for _, pauses := range []bool{false, true} {
			bubbleOf(t, fmt.Sprint(name, ", pauses: ", pauses), func(t *testing.T, p *process) {
				var left []string
				if !pauses { // Run waits behind another leader
					left = []string{p.join(t).leads(t, election.Options{}).Key()}
				}
				r := p.runs(t, election.Options{}, election.WithRejoin())
				if pauses {
					r.leads(t).returns <- nil
				} else {
					time.Sleep(time.Hour)
				}
				r.requireIdle(t)
				tc.end(t, p, r)
				if pauses && tc.want == lease.ErrClosed { //nolint:errorlint // which of the two
					time.Sleep(time.Second) // Run notices it when it campaigns again
				}
				require.ErrorIs(t, r.returned(t), tc.want)
				synctest.Wait()
				require.Equal(t, left, p.keys())
			})
		}
	}
}

// What ended first decides what Run returns, and whether it campaigns again. An error of lead that repeats the end of its
// context is none. The next candidate leads when lead has returned. If the leadership is lost before that, Run returns the
// loss too, since others could lead while lead was still running, and does not campaign again.
func TestRun_whatEndedFirstDecides(t *testing.T) {
	type what func(t *testing.T, p, other *process, r *role, c *term)
	own := errors.New("its own")
	ends := what(func(_ *testing.T, _, _ *process, r *role, _ *term) { r.stop(errMine) })
	resign := what(func(t *testing.T, _, _ *process, _ *role, c *term) { t.Helper(); resigns(t, c) })
	asked := what(func(t *testing.T, _, other *process, _ *role, _ *term) { t.Helper(); other.release(t) })
	closes := what(func(t *testing.T, p, _ *process, _ *role, _ *term) {
		t.Helper()
		closed := p.closes(t.Context()) // it waits for lead
		t.Cleanup(func() { require.NoError(t, <-closed) })
	})
	is := func(err error) func(*term) error { return func(*term) error { return err } }
	with := func(err error) func(*term) error { return is(fmt.Errorf("%w: %w", own, err)) }
	canceled := func(c *term) error { return c.ctx.Err() }
	cause := func(c *term) error { return context.Cause(c.ctx) }
	type row struct {
		happens what
		cause   error // of lead's context
		then    loss
		returns func(*term) error
		want    error // that Run returns
		own     bool  // Run returns lead's own error
		again   bool  // Run campaigns again
		once    bool  // without WithRejoin
	}
	table := map[string]row{
		"an error":       {returns: is(own), own: true},
		"a cancellation": {returns: with(context.Canceled), own: true}, // like any other, while its context has not ended

		"ctx ended":                     {happens: ends, cause: errMine, returns: is(nil), want: errMine},
		"ctx ended, its own":            {happens: ends, cause: errMine, returns: is(own), want: errMine, own: true},
		"ctx ended, Err":                {happens: ends, cause: errMine, returns: canceled, want: errMine},
		"ctx ended, Err, wrapped":       {happens: ends, cause: errMine, returns: with(context.Canceled), want: errMine},
		"ctx ended, the cause":          {happens: ends, cause: errMine, returns: cause, want: errMine},
		"ctx ended, the cause, wrapped": {happens: ends, cause: errMine, returns: with(errMine), want: errMine},
		"ctx ended, a time-out":         {happens: ends, cause: errMine, returns: with(context.DeadlineExceeded), want: errMine, own: true},
		"resigned, once":                {happens: resign, cause: election.ErrResigned, returns: canceled, once: true},
		"resigned":                      {happens: resign, cause: election.ErrResigned, returns: canceled, again: true},
		"resigned, its own":             {happens: resign, cause: election.ErrResigned, returns: is(own), own: true},
		"asked to release, its own":     {happens: asked, cause: lease.ErrAskedToRelease, returns: is(own), again: true, once: true},
		"asked to release":              {happens: asked, cause: lease.ErrAskedToRelease, returns: cause, again: true, once: true},
		"session closed": {
			happens: closes, cause: lease.ErrClosed, then: loss{reason: lease.ReasonSessionClosed},
			returns: is(own), want: lease.ErrClosed, own: true,
		},
	}
	for name, loss := range losses {
		table["ctx ended, then "+name] = row{happens: ends, cause: errMine, then: loss, returns: is(own), want: errMine, own: true}
		table["resigned, then "+name] = row{happens: resign, cause: election.ErrResigned, then: loss, returns: is(nil), want: lease.ErrLost, once: true}
	}
	for name, tc := range table {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			other := p.join(t)
			options := []election.RunOption{election.WithOnLost(toldNothing(t))}
			if !tc.once {
				options = append(options, election.WithRejoin())
			}
			r := p.runs(t, election.Options{}, options...)
			c := r.leads(t)
			next := other.waits(t, election.Options{})
			if tc.happens != nil {
				tc.happens(t, p, other, r, c)
				require.Equal(t, time.Now(), c.requireCause(t, tc.cause))
				require.ErrorIs(t, c.ctx.Err(), context.Canceled)
				time.Sleep(time.Minute)
				next.requireWaiting(t)
			}
			if tc.then.happens != nil {
				tc.then.happens(p, c.key())
				time.Sleep(time.Minute)
				r.requireIdle(t)
				require.ErrorIs(t, context.Cause(c.ctx), tc.cause, "the first cause stays")
				p.c.Restore()
			}
			c.returns <- tc.returns(c)
			l := next.won(t)
			require.Greater(t, l.Token(), c.token)
			time.Sleep(time.Minute)
			if tc.again {
				r.requireIdle(t)
				require.NoError(t, l.Resign(t.Context()))
				require.Greater(t, r.leads(t).token, l.Token())
				return
			}
			err := r.returned(t)
			require.Equal(t, tc.own, errors.Is(err, own), "%v", err)
			if tc.then.reason != 0 {
				requireLost(t, err, tc.then.reason)
			} else {
				require.NotErrorIs(t, err, lease.ErrLost)
			}
			if tc.want != nil || !tc.own {
				require.ErrorIs(t, err, tc.want)
			} else {
				require.ErrorContains(t, err, `election: run "x": lead: its own`)
			}
		})
	}
}

// If ctx ends after lead has returned, Run returns what follows from lead's result.
func TestRun_contextEndsWhileItReleases(t *testing.T) {
	for name, returns := range map[string]error{"nil": nil, "an error": errMine} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			r := p.runs(t, election.Options{})
			c := r.leads(t)
			p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: time.Second})
			c.returns <- returns
			r.requireIdle(t)
			r.stop(errors.New("too late"))
			r.requireIdle(t)
			require.Equal(t, []string{c.key()}, p.keys())
			time.Sleep(time.Second)
			if returns == nil {
				require.NoError(t, r.returned(t))
			} else {
				require.ErrorIs(t, r.returned(t), returns)
				require.NotContains(t, r.err.Error(), "too late")
			}
			require.Empty(t, p.keys())
		})
	}
}

// If the release fails, Run returns its error after 8 s, whatever ctx is, or logs it and goes on. The key is deleted
// when the network is back.
func TestRun_cannotRelease(t *testing.T) {
	for name, c := range map[string]struct {
		returns error
		stops   bool
		rejoin  []election.RunOption
	}{
		"lead returned nil":      {},
		"lead returned an error": {returns: errMine},
		"ctx ended":              {stops: true},
		"rejoin":                 {rejoin: []election.RunOption{election.WithRejoin()}},
	} {
		inBubble(t, name, func(t *testing.T) {
			var log bytes.Buffer
			p := newProcess(t, newServer(t), lease.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			r := p.runs(t, election.Options{}, c.rejoin...)
			l := r.leads(t)
			p.c.Cut()
			if c.stops {
				r.stop(errMine)
				l.requireCause(t, errMine)
			}
			l.returns <- c.returns
			time.Sleep(8*time.Second - 1)
			r.requireIdle(t)
			time.Sleep(time.Nanosecond)
			if c.rejoin != nil {
				synctest.Wait()
				require.Regexp(t, `"resigned with an error" .*the key will be deleted in the background`, log.String())
				p.c.Restore()
				r.leadsSoon(t)
				return
			}
			err := r.returned(t)
			require.ErrorContains(t, err, "the key will be deleted in the background")
			require.NotErrorIs(t, err, lease.ErrLost)
			require.Equal(t, c.returns != nil || c.stops, errors.Is(err, errMine))
			require.Len(t, p.keys(), 1)
			p.c.Restore()
			time.Sleep(time.Second)
			require.Empty(t, p.keys())
		})
	}
}

func TestRun_transfers(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		r := p.runs(t, election.Options{Value: "a"}, election.WithRejoin())
		c := r.leads(t)
		second := p.join(t).waits(t, election.Options{Value: "b"})
		third := p.join(t).waits(t, election.Options{Value: "c"})
		l, _ := election.FromContext(c.ctx)
		require.ErrorIs(t, l.Transfer(t.Context(), "nobody"), election.ErrNoCandidate)
		require.NoError(t, c.ctx.Err(), "the leadership goes on")

		require.NoError(t, l.Transfer(t.Context(), "c"))
		c.requireCause(t, election.ErrResigned)
		require.ErrorIs(t, l.Transfer(t.Context(), "b"), election.ErrResigned)
		time.Sleep(time.Minute)
		second.requireWaiting(t)
		third.requireWaiting(t)
		c.returns <- nil
		next := third.won(t)
		require.Greater(t, next.Token(), c.token)
		time.Sleep(time.Minute)
		require.NoError(t, next.Resign(t.Context()))
		next = second.won(t)
		require.NoError(t, next.Resign(t.Context()))
		require.Greater(t, r.leads(t).token, next.Token(), "from the end of the queue")
	})
}

// If the chosen candidate cannot lead when lead returns, the next contender leads, and Run logs that, without keys, and
// returns no error.
func TestRun_transfersToACandidateThatCannotLead(t *testing.T) {
	for name, behindALock := range map[string]bool{"gone": false, "again, behind a lock": true} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			var log bytes.Buffer
			r := newProcess(t, p.srv, lease.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}).runs(t, election.Options{})
			c := r.leads(t)
			next := p.waits(t, election.Options{Value: "b"})
			gone := p.join(t)
			gone.waits(t, election.Options{Value: "c"})
			l, _ := election.FromContext(c.ctx)
			require.NoError(t, l.Transfer(t.Context(), "c"))
			require.NoError(t, gone.s.Close(t.Context()))
			if behindALock {
				locks := p.join(t)
				go func() { _, _ = locks.s.Lock(t.Context(), "x") }()
				synctest.Wait()
				p.join(t).waits(t, election.Options{Value: "c"})
			}
			c.returns <- nil
			require.NoError(t, r.returned(t))
			require.NoError(t, next.won(t).Resign(t.Context()))
			synctest.Wait()
			require.Contains(t, log.String(), `"the next candidate leads"`)
			require.Equal(t, behindALock, strings.Contains(log.String(), election.ErrBlocked.Error()))
			require.NotContains(t, log.String(), "x/")
		})
	}
}

// A candidate that is asked to release before it knows that it leads enters the queue again at its end.
func TestRun_isAskedBeforeItKnows(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		other := p.join(t)
		first, before := other.leads(t, election.Options{}), other.waits(t, election.Options{})
		r := p.runs(t, election.Options{})
		time.Sleep(time.Second)
		require.NoError(t, first.Resign(t.Context()))
		second := before.won(t)
		time.Sleep(time.Second)
		require.NoError(t, second.Proclaim(t.Context(), "new"))
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 4 * time.Second}) // delays its check whether it was passed
		require.NoError(t, second.Resign(t.Context()))
		synctest.Wait()
		other.release(t)
		r.requireIdle(t)
		time.Sleep(20 * time.Second)
		r.leads(t)
		r.requireIdle(t)
	})
}
