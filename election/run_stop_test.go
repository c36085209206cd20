package election_test

import (
	"bytes"
	"cmp"
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
			inBubble(t, fmt.Sprint(name, ", pauses: ", pauses), func(t *testing.T) {
				srv := newServer(t)
				p := newProcess(t, srv, lease.Options{})
				var left []string
				if !pauses { // Run waits behind another leader
					left = []string{newProcess(t, srv, lease.Options{}).leads(t, election.Options{}).Key()}
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

// Run returns ctx's cause, and lead's own error unless that error repeats the end of its context.
func TestRun_contextEndsWhileItLeads(t *testing.T) {
	own := errors.New("its own")
	for name, c := range map[string]struct {
		returns func(*term) error
		own     bool
	}{
		"nil":              {func(*term) error { return nil }, false},
		"its own":          {func(*term) error { return own }, true},
		"Err":              {func(c *term) error { return c.ctx.Err() }, false},
		"Err, wrapped":     {func(c *term) error { return fmt.Errorf("%w: %w", own, c.ctx.Err()) }, false},
		"the cause":        {func(c *term) error { return context.Cause(c.ctx) }, false},
		"the cause, twice": {func(c *term) error { return fmt.Errorf("%w: %w", own, context.Cause(c.ctx)) }, false},
		"a time-out": {func(*term) error {
			return fmt.Errorf("%w: %w", own, context.DeadlineExceeded)
		}, true},
	} {
		inBubble(t, name, func(t *testing.T) {
			p, other := newPair(t)
			r := p.runs(t, election.Options{}, election.WithRejoin(), election.WithOnLost(toldNothing(t)))
			l := r.leads(t)
			next := other.waits(t, election.Options{})
			r.stop(errMine)
			require.Equal(t, time.Now(), l.requireCause(t, errMine))
			require.ErrorIs(t, l.ctx.Err(), context.Canceled)
			time.Sleep(time.Minute)
			next.requireWaiting(t)
			l.returns <- c.returns(l)
			err := r.returned(t)
			require.ErrorIs(t, err, errMine)
			require.Equal(t, c.own, errors.Is(err, own), "%v", err)
			require.NotErrorIs(t, err, lease.ErrLost)
			next.won(t)
		})
	}
}

// If ctx ends after lead has returned, Run returns what follows from lead's result.
func TestRun_contextEndsWhileItReleases(t *testing.T) {
	for name, returns := range map[string]error{"nil": nil, "an error": errMine} {
		inBubble(t, name, func(t *testing.T) {
			p := newProcess(t, newServer(t), lease.Options{})
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

// If ctx has ended and the leadership is lost before lead returns, Run returns the loss too.
func TestRun_lostAfterTheContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
		r := p.runs(t, election.Options{})
		c := r.leads(t)
		time.Sleep(time.Second)
		r.stop(errMine)
		synctest.Wait()
		require.NoError(t, p.srv.Revoke(p.s.Status().LeaseID))
		time.Sleep(time.Second)
		require.ErrorIs(t, context.Cause(c.ctx), errMine, "the first cause stays")
		own := errors.New("its own")
		c.returns <- own
		err := r.returned(t)
		require.ErrorIs(t, err, errMine)
		require.ErrorIs(t, err, own)
		requireLost(t, err, lease.ReasonLeaseGone)
	})
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

func TestRun_resigns(t *testing.T) {
	for name, tc := range map[string]struct {
		rejoin []election.RunOption
		own    error // that lead returns
	}{
		"once":     {},
		"rejoin":   {rejoin: []election.RunOption{election.WithRejoin()}},
		"an error": {[]election.RunOption{election.WithRejoin()}, errMine},
	} {
		inBubble(t, name, func(t *testing.T) {
			p, other := newPair(t)
			r := p.runs(t, election.Options{}, append(tc.rejoin, election.WithOnLost(toldNothing(t)))...)
			c := r.leads(t)
			next := other.waits(t, election.Options{})
			resigns(t, c)
			time.Sleep(time.Minute)
			next.requireWaiting(t)
			c.returns <- cmp.Or(tc.own, c.ctx.Err())
			l := next.won(t)
			time.Sleep(time.Minute)
			if tc.rejoin == nil || tc.own != nil {
				require.ErrorIs(t, r.returned(t), tc.own)
				return
			}
			r.requireIdle(t)
			require.NoError(t, l.Resign(t.Context()))
			require.Greater(t, r.leads(t).token, l.Token())
		})
	}
}

func TestRun_transfers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		r := newProcess(t, srv, lease.Options{}).runs(t, election.Options{Value: "a"}, election.WithRejoin())
		c := r.leads(t)
		second := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
		third := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "c"})
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
		inBubble(t, name, func(t *testing.T) {
			srv := newServer(t)
			var log bytes.Buffer
			r := newProcess(t, srv, lease.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}).runs(t, election.Options{})
			c := r.leads(t)
			next := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
			gone := newProcess(t, srv, lease.Options{})
			gone.waits(t, election.Options{Value: "c"})
			l, _ := election.FromContext(c.ctx)
			require.NoError(t, l.Transfer(t.Context(), "c"))
			require.NoError(t, gone.s.Close(t.Context()))
			if behindALock {
				locks := newProcess(t, srv, lease.Options{})
				go func() { _, _ = locks.s.Lock(t.Context(), "x") }()
				synctest.Wait()
				newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "c"})
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
