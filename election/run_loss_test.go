package election_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// loss is a way to lose a place in the queue, and the reason that is reported.
type loss struct {
	happens func(p *process, key string)
	reason  lease.Reason
}

var losses = map[string]loss{
	"lease revoked":        {func(p *process, _ string) { _ = p.srv.Revoke(p.s.Status().LeaseID) }, lease.ReasonLeaseGone},
	"key deleted":          {func(p *process, key string) { p.srv.Delete(key) }, lease.ReasonKeyDeleted},
	"key overwritten":      {func(p *process, key string) { p.srv.Put(key, "") }, lease.ReasonKeyOverwritten},
	"key on another lease": {(*process).putOnAnotherLease, lease.ReasonKeyOverwritten},
	"cut off":              {func(p *process, _ string) { p.c.Cut() }, lease.ReasonDeadlinePassed},
}

func (c *term) key() string {
	l, _ := election.FromContext(c.ctx)
	return l.Key()
}

// After a loss Run campaigns again.
func TestRun_campaignsAgainAfterALoss(t *testing.T) {
	for name, loss := range losses {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			other := p.join(t)
			told := make(news, 10)
			first := p.runs(t, election.Options{}, election.WithOnLost(told.tell))
			a := first.leads(t)
			second := other.runs(t, election.Options{})
			// The other process sees the change a moment later, so lead's context must have ended by then.
			other.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Millisecond})
			time.Sleep(time.Second)
			began := time.Now()
			loss.happens(p, a.key())
			time.Sleep(time.Minute)
			ended := a.requireCause(t, lease.ErrLost)
			requireLost(t, context.Cause(a.ctx), loss.reason)
			l, _ := election.FromContext(a.ctx)
			requireLost(t, l.Err(), loss.reason) // also while the lease is still renewed

			if loss.reason != lease.ReasonDeadlinePassed {
				require.Equal(t, began, ended)
			}
			first.requireIdle(t)
			require.Empty(t, told, "lead has not returned")

			p.c.Restore()
			time.Sleep(time.Minute)
			first.requireIdle(t)
			require.Empty(t, told)
			require.Len(t, second.terms, 1)
			a.returns <- errMine
			time.Sleep(time.Minute)
			first.requireIdle(t)
			require.Len(t, told, 1)
			err := <-told
			require.ErrorIs(t, err, errMine)
			requireLost(t, err, loss.reason)

			b := second.leads(t)
			require.Greater(t, b.token, a.token)
			require.True(t, ended.Before(b.began), "lead's context ended %v after the other process led", ended.Sub(b.began))
			b.returns <- nil
			again := first.leads(t)
			require.Greater(t, again.token, b.token)
			again.returns <- nil
			require.NoError(t, first.returned(t), "the loss of an earlier leadership is no error of Run")
			require.Empty(t, told, "the loss is reported once")
			require.Empty(t, p.keys())
		})
	}
}

// Close waits for lead, but not for onLost.
func TestRun_onLostMayTakeItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		told, goOn := make(chan struct{}), make(chan struct{})
		r := p.runs(t, election.Options{}, election.WithOnLost(func(error) { close(told); <-goOn }))
		c := r.leadsSoon(t)
		time.Sleep(time.Second)
		require.True(t, p.srv.Delete(c.key()))
		synctest.Wait()
		c.requireCause(t, lease.ErrLost)
		c.returns <- nil
		<-told
		closing := time.Now()
		require.NoError(t, p.s.Close(t.Context()))
		require.Zero(t, time.Since(closing))
		close(goOn)
	})
}

// OnLost is not called if the place in the queue was lost while waiting.
func TestRun_onLostIsNotCalledForACandidate(t *testing.T) {
	for name, loss := range losses {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			other := p.join(t)
			leader := other.leads(t, election.Options{})
			told := make(news, 10)
			r := p.runs(t, election.Options{}, election.WithOnLost(told.tell))
			time.Sleep(time.Second)
			keys := slices.DeleteFunc(p.keys(), func(key string) bool { return key == leader.Key() })
			require.Len(t, keys, 1)
			before := p.s.Status().LeaseID
			loss.happens(p, keys[0])
			time.Sleep(time.Minute)
			p.c.Restore()
			time.Sleep(time.Minute)
			r.requireIdle(t)
			ofTheLease := loss.reason == lease.ReasonLeaseGone || loss.reason == lease.ReasonDeadlinePassed
			require.Equal(t, ofTheLease, p.s.Status().LeaseID != before, "a new lease if and only if the old one is lost")

			require.NoError(t, leader.Resign(t.Context()))
			c := r.leads(t)
			require.Greater(t, c.token, leader.Token())
			c.returns <- nil
			require.NoError(t, r.returned(t))
			require.Empty(t, told)
		})
	}
}

// resigns resigns the leadership of a running lead, twice.
func resigns(t *testing.T, c *term) {
	t.Helper()
	l, ok := election.FromContext(c.ctx)
	require.True(t, ok)
	require.NoError(t, l.Resign(t.Context()))
	c.requireCause(t, election.ErrResigned)
	require.ErrorIs(t, l.Err(), election.ErrResigned)
	require.NoError(t, l.Resign(t.Context()), "again")
	require.ErrorIs(t, l.Proclaim(t.Context(), "new"), election.ErrResigned)
}

// If the release finds that the leadership was lost before lead returned, Run reports the loss.
func TestRun_findsALossWhenItReleases(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		told := make(news, 10)
		r := p.runs(t, election.Options{}, election.WithOnLost(told.tell))
		c := r.leads(t)
		p.srv.Delete(c.key()) // the key is too young to be watched
		c.returns <- nil
		again := r.leadsSoon(t)
		require.Greater(t, again.token, c.token)
		require.Len(t, told, 1)
		requireLost(t, <-told, lease.ReasonKeyDeleted)
	})
}

// If the lease is lost during the release, Run does not campaign again: lead has done its work.
func TestRun_isNotLostAfterLeadHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{TTL: 5 * time.Second})
		r := p.runs(t, election.Options{}, election.WithOnLost(toldNothing(t)))
		c := r.leads(t)
		time.Sleep(1300 * time.Millisecond) // before the first renewal, whose jitter is up to a fifth
		p.c.Cut()
		c.returns <- nil
		time.Sleep(time.Minute)
		p.c.Restore()
		time.Sleep(time.Minute)
		require.ErrorContains(t, r.returned(t), "the key will be deleted in the background")
		require.Empty(t, p.keys())
	})
}

// If ctx ends and the lease is lost at the same time, Run's error is ctx's cause.
func TestRun_contextEndsWhileItEntersAgain(t *testing.T) {
	for name, lose := range map[string]func(*process){
		"key deleted":   func(p *process) { p.srv.Delete(key(p.srv, "b")) },
		"lease revoked": func(p *process) { _ = p.srv.Revoke(p.s.Status().LeaseID) },
	} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			p.join(t).leads(t, election.Options{Value: "a"})
			r := p.runs(t, election.Options{Value: "b"})
			time.Sleep(time.Second)
			p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: 100 * time.Millisecond})
			lose(p)
			time.Sleep(50 * time.Millisecond)
			r.stop(errMine)
			require.ErrorIs(t, r.returned(t), errMine)
			time.Sleep(time.Minute)
			require.Equal(t, []string{"a"}, values(p.srv))
		})
	}
}
