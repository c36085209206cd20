package election_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// role is a Run under way. Its lead returns when the test says so, or when the test ends.
type role struct {
	*action
	terms chan *term
	stop  context.CancelCauseFunc // ends Run's context
	over  chan struct{}           // closed when the test ends
}

// term is one call of lead.
type term struct {
	ctx     context.Context //nolint:containedctx // the context of lead
	token   fence.Token
	began   time.Time
	ended   time.Time  // when ctx ended; read it after synctest.Wait
	returns chan error // of capacity 1: the result that lead returns
}

// runs begins a Run.
func (p *process) runs(t *testing.T, opts election.Options, options ...election.RunOption) *role {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	r := &role{terms: make(chan *term, 100), stop: stop, over: make(chan struct{})}
	var leading atomic.Bool
	r.action = inBackground(func() error {
		err := election.Run(ctx, p.s, "x", opts, func(ctx context.Context, token fence.Token) error {
			assert.False(t, leading.Swap(true), "lead is running already")
			defer leading.Store(false)
			return r.lead(ctx, token)
		}, options...)
		assert.False(t, leading.Load(), "Run has returned while lead is running")
		return err
	})
	t.Cleanup(func() {
		close(r.over)
		stop(nil)
		<-r.done
	})
	return r
}

func (r *role) lead(ctx context.Context, token fence.Token) error {
	c := &term{ctx: ctx, token: token, began: time.Now(), returns: make(chan error, 1)}
	context.AfterFunc(ctx, func() { c.ended = time.Now() })
	r.terms <- c
	select {
	case err := <-c.returns:
		return err
	case <-r.over:
		return nil
	}
}

// leads returns the call of lead that must be under way now.
func (r *role) leads(t *testing.T) *term {
	t.Helper()
	synctest.Wait()
	select {
	case c := <-r.terms:
		require.NoError(t, c.ctx.Err())
		return c
	default:
		require.FailNow(t, "Run has not called lead")
		return nil
	}
}

// leadsSoon returns the next call of lead, after the pause before the next campaign.
func (r *role) leadsSoon(t *testing.T) *term {
	t.Helper()
	synctest.Wait()
	if len(r.terms) == 0 {
		time.Sleep(time.Second)
	}
	return r.leads(t)
}

// requireIdle checks that Run has not returned and lead has not been called again.
func (r *role) requireIdle(t *testing.T) {
	t.Helper()
	r.requireWaiting(t)
	require.Empty(t, r.terms, "lead was called")
}

// returned returns the result of Run, which must have returned by now.
func (r *role) returned(t *testing.T) error {
	t.Helper()
	synctest.Wait()
	require.False(t, r.waiting(), "Run has not returned")
	require.Empty(t, r.terms, "lead was called")
	return r.err
}

// requireCause checks that lead's context has ended with the cause by now, and returns when it ended.
func (c *term) requireCause(t *testing.T, want error) time.Time {
	t.Helper()
	synctest.Wait()
	require.ErrorIs(t, context.Cause(c.ctx), want)
	return c.ended
}

func (p *process) keys() []string {
	var names []string
	for _, kv := range p.srv.Keys("") {
		names = append(names, string(kv.Key))
	}
	return names
}

// news are the errors that a callback has received.
type news chan error

func (n news) tell(err error) { n <- err }

var errMine = errors.New("mine")

// toldNothing fails the test when it is called.
func toldNothing(t *testing.T) func(error) {
	t.Helper()
	return func(err error) { assert.Fail(t, "the callback was called", "%v", err) }
}

type contextKey struct{}

func TestRun_givesLeadItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{Owner: "session"})
		ctx := context.WithValue(fence.NewContext(t.Context(), 99), contextKey{}, "mine")
		var kept context.Context
		lead := func(lead context.Context, token fence.Token) error {
			kept = lead //nolint:fatcontext // to see what becomes of it
			kv := p.srv.Keys("x/")[0]
			require.Equal(t, fence.Token(kv.CreateRevision), token)
			require.Equal(t, "address", string(kv.Value))
			inCtx, ok := fence.FromContext(lead)
			require.True(t, ok)
			require.Equal(t, token, inCtx, "lead's own token, not the token in the caller's context")
			l, ok := election.FromContext(lead)
			require.True(t, ok)
			require.Equal(t, token, l.Token())
			require.Equal(t, string(kv.Key), l.Key())
			require.Equal(t, "x", l.Name())
			require.NoError(t, l.Err())
			require.Equal(t, "mine", lead.Value(contextKey{}))
			require.NoError(t, lead.Err())
			return nil
		}
		require.NoError(t, election.Run(ctx, p.s, "x", election.Options{Value: "address"}, lead, election.WithOnLost(toldNothing(t))))
		require.Empty(t, p.keys())
		require.Error(t, kept.Err(), "the context ends when lead has returned")
		l, _ := election.FromContext(kept)
		require.ErrorIs(t, l.Err(), election.ErrResigned)
		require.NoError(t, l.Resign(t.Context()), "Run has already resigned")
	})
}

// The pauses grow up to a second, and are short again after a leadership of more than ten seconds.
func TestRun_pausesBeforeItCampaignsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		r := p.runs(t, election.Options{}, election.WithRejoin())
		pause := func(c *term) (*term, time.Duration) {
			c.returns <- nil
			began := time.Now()
			next := r.leadsSoon(t)
			return next, next.began.Sub(began)
		}
		c, jitter := r.leads(t), make(map[time.Duration]bool)
		for _, lasts := range []time.Duration{0, 11 * time.Second} {
			time.Sleep(lasts)
			longest := 25 * time.Millisecond
			for range 10 {
				var took time.Duration
				c, took = pause(c)
				require.GreaterOrEqual(t, took, longest/2)
				require.LessOrEqual(t, took, longest)
				jitter[longest-took] = true
				longest = min(2*longest, time.Second)
			}
		}
		require.Greater(t, len(jitter), 10, "with jitter")
	})
}

// Run returns a refusal of etcd, and does not retry it.
func TestRun_refusedByEtcd(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		began := time.Now()
		err := p.runs(t, election.Options{}, election.WithRejoin()).returned(t)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.ErrorContains(t, err, `election: run "x"`)
		require.NotErrorIs(t, err, lease.ErrLost)
		require.Zero(t, time.Since(began))
	})
}

func TestRun_leadPanics(t *testing.T) {
	for name, c := range map[string]struct {
		panics func()
		run    func(t *testing.T, run func())
	}{
		"panic": {func() { panic("mine") }, func(t *testing.T, run func()) {
			t.Helper()
			require.PanicsWithValue(t, "mine", run)
		}},
		"runtime.Goexit": {runtime.Goexit, func(t *testing.T, run func()) {
			t.Helper()
			exited := make(chan struct{})
			go func() {
				defer close(exited)
				run()
				assert.Fail(t, "Run returned after runtime.Goexit")
			}()
			<-exited
		}},
	} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			other := p.join(t)
			var next *candidate
			c.run(t, func() {
				_ = election.Run(t.Context(), p.s, "x", election.Options{}, func(ctx context.Context, _ fence.Token) error {
					next = other.campaign(context.WithoutCancel(ctx), election.Options{})
					synctest.Wait()
					c.panics()
					return nil
				}, election.WithRejoin(), election.WithStopTimeout(time.Second, nil))
			})
			next.won(t)
			began := time.Now()
			require.NoError(t, p.s.Close(t.Context()))
			require.Zero(t, time.Since(began), "Close does not wait for the lead that panicked")
		})
	}
}

// endings are ways in which lead's context ends.
var endings = map[string]struct {
	happens func(t *testing.T, p *process, r *role, c *term)
	cause   error
}{
	"ctx ended": {func(_ *testing.T, _ *process, r *role, _ *term) { r.stop(errMine) }, errMine},
	"resigned":  {func(t *testing.T, _ *process, _ *role, c *term) { t.Helper(); resigns(t, c) }, election.ErrResigned},
	"lost":      {func(_ *testing.T, p *process, _ *role, _ *term) { _ = p.srv.Revoke(p.s.Status().LeaseID) }, lease.ErrLost},
}

// OnHang is called once for a lead that hangs, whatever has ended its context. If it returns, Run goes on waiting. Health
// fails until lead has returned: nobody else can lead meanwhile.
func TestRun_leadHangs(t *testing.T) {
	for name, c := range endings {
		inBubble(t, name, func(t *testing.T) {
			h, p := newHealth(t), newProcess(t, newServer(t), lease.Options{})
			told := make(news, 10)
			r := p.runs(t, election.Options{Health: h}, election.WithStopTimeout(5*time.Second, told.tell))
			l := r.leads(t)
			time.Sleep(time.Hour)
			require.Empty(t, told, "lead's context has not ended")
			c.happens(t, p, r, l)
			l.requireCause(t, c.cause)
			keys := p.keys()
			time.Sleep(5*time.Second - 1)
			synctest.Wait()
			require.Empty(t, told)
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Len(t, told, 1)
			err := <-told
			require.ErrorIs(t, err, c.cause)
			require.ErrorContains(t, err, `election: run "x": lead has not returned 5s after the end of its context: `)
			time.Sleep(tolerance - 5*time.Second) // for so long lead may take to return
			requireWell(t, h)
			time.Sleep(time.Nanosecond)
			requireIll(t, h, "its context ended 10s ago")
			time.Sleep(time.Hour)
			requireIll(t, h)
			r.requireIdle(t)
			require.Equal(t, keys, p.keys())
			l.returns <- nil
			requireWell(t, h)
			if name == "lost" { // Run campaigns again
				r.leadsSoon(t)
			}
			time.Sleep(time.Hour)
			requireWell(t, h)
			require.Empty(t, told, "once")
		})
	}
}

// OnHang is not called without a timeout, or for a lead that returns in time. If it is nil, Run still waits for lead.
func TestRun_leadHangs_withoutOnHang(t *testing.T) {
	for name, opt := range map[string]election.RunOption{
		"no timeout":  election.WithStopTimeout(0, func(err error) { panic(err) }),
		"in time":     election.WithStopTimeout(time.Hour+1, func(err error) { panic(err) }),
		"no function": election.WithStopTimeout(time.Second, nil),
	} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			r := p.runs(t, election.Options{}, opt)
			c := r.leads(t)
			r.stop(errMine)
			time.Sleep(time.Hour)
			r.requireIdle(t)
			c.returns <- nil
			require.ErrorIs(t, r.returned(t), errMine)
			time.Sleep(time.Hour)
		})
	}
}

// Run does not go on while onHang runs, even if lead has returned: onHang may be about to end the process.
func TestRun_waitsForOnHang(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		r := p.runs(t, election.Options{}, election.WithStopTimeout(time.Second, func(error) { time.Sleep(time.Hour) }))
		c := r.leads(t)
		r.stop(errMine)
		time.Sleep(time.Minute)
		c.returns <- nil
		time.Sleep(time.Minute)
		r.requireIdle(t)
		require.Len(t, p.keys(), 1)
		time.Sleep(time.Hour)
		require.ErrorIs(t, r.returned(t), errMine)
	})
}

// closes begins to close the session.
func (p *process) closes(ctx context.Context) <-chan error {
	closed := make(chan error, 1)
	go func() { closed <- p.s.Close(ctx) }()
	synctest.Wait()
	return closed
}

// If the session is closed while Run releases the key, the end of the lease deletes the key.
func TestRun_sessionIsClosedWhileItReleases(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		r := p.runs(t, election.Options{}, election.WithOnLost(toldNothing(t)))
		c := r.leads(t)
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Request})
		c.returns <- nil
		r.requireIdle(t)
		require.NoError(t, <-p.closes(t.Context()))
		require.ErrorIs(t, r.returned(t), lease.ErrClosed)
		require.Empty(t, p.keys())
	})
}
