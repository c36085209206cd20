package election_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
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
