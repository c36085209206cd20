package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/candidacy"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/scope"
	"github.com/leasefence/leasefence/lease"
)

// Run campaigns in the election called name and calls lead when it has won. If the leadership is lost, it campaigns
// again. It is for a service that leads for as long as it runs.
//
// Lead's context ends when the leadership is lost, before the server can let another candidate lead, or when ctx ends;
// [context.Cause] says which. It has ctx's values, the token for [fence.FromContext], which is the second argument too,
// and the [Leadership] for [FromContext].
//
// One Run never runs lead twice at the same time. Run waits until lead has returned, however long that takes, and
// releases the key only then; see [WithStopTimeout] for a lead that hangs. If lead panics, Run releases the key and the
// panic goes on. The release does not depend on ctx and takes 8 s at most; a key that remains will be deleted in the
// background.
//
// What ended first decides what happens next:
//
//	lead returned nil, also if it has   Run returns nil, or why the key was not released; with [WithRejoin] it
//	resigned                            campaigns again
//	lead returned an error              Run returns it, wrapped
//	a higher priority was preferred     Run campaigns again, whatever lead returned; see [Options].KeepLead
//	lease.Release asked for it          Run campaigns again, whatever lead returned
//	the leadership was lost             Run campaigns again; [WithOnLost] reports it, whatever lead returned
//	the lease was lost while waiting    Run campaigns again, on a new lease
//	ctx ended                           Run returns an error that wraps ctx's cause, and lead's own error if there is one
//	the session was closed              Run returns an error that matches [lease.ErrClosed]
//	etcd refuses the campaign           Run returns its error (no permission, say)
//
// After lead's context has ended, an error of lead that matches context.Canceled or the context's cause does not count
// as an error. Before it campaigns again Run pauses for 12 ms to a second, longer each time that a campaign and its
// leadership together have lasted less than ten seconds. Lead must not close the session: Close waits for lead.
func Run(ctx context.Context, session *lease.Session, name string, opts Options, lead func(ctx context.Context, token fence.Token) error, options ...RunOption) error {
	if err := check(session, name, opts); err != nil {
		return err
	}
	more, err := newRunOptions(options)
	if err != nil {
		return err
	}
	if lead == nil {
		return errors.New("election: lead is nil, want a function")
	}
	r := runner{session, name, opts, more, lead, candidacy.Logger(session).With("election", name)}
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("election: run %q: %w", name, err)
	}
	return nil
}

type runner struct {
	session *lease.Session
	name    string
	opts    Options
	runOpts runOptions
	lead    func(context.Context, fence.Token) error
	log     *slog.Logger
}

// steady is how long a round lasts to reset the pause before the next campaign.
const steady = 10 * time.Second

func (r *runner) run(ctx context.Context) error {
	var pause etcd.Backoff
	for {
		began := time.Now()
		again, lost, err := r.round(ctx)
		if lost != nil && r.runOpts.onLost != nil {
			r.runOpts.onLost(lost) // after the round, so that Close does not wait for it
		}
		if !again {
			return err
		}
		if err != nil {
			r.log.Warn("resigned with an error", "err", err)
		}
		if time.Since(began) > steady {
			pause.Reset()
		}
		if err := pause.Sleep(ctx); err != nil {
			return err
		}
	}
}

// round is one campaign and, if it is won, one leadership. It reports whether Run campaigns again, and the loss, if
// any.
func (r *runner) round(ctx context.Context) (again bool, lost, err error) {
	leave := candidacy.Enter(r.session) // so that Close waits for lead
	if leave == nil {
		return false, nil, lease.ErrClosed
	}
	defer leave()
	l, err := campaign(ctx, r.session, r.name, r.opts, true)
	switch {
	case err == nil:
		return r.after(r.term(ctx, l))
	case errors.Is(err, lease.ErrLost) && !errors.Is(err, lease.ErrClosed):
		// It has not led, so OnLost is not called.
		r.log.Warn("lost while waiting to lead", "err", err)
		return true, nil, nil
	case errors.Is(err, lease.ErrAskedToRelease): // before it knew that it led
		return true, nil, nil
	}
	return false, nil, err
}

// ending is how a leadership ended.
type ending struct {
	ctx      error // the cause of Run's context, nil if lead returned before its end
	lead     error // lead's own error
	lost     error // why the leadership was lost, nil if lead returned or resigned before
	released error // why the key was not released
	handed   bool  // before lead returned, a candidate of a higher priority or an operator asked for the leadership
}

// term is one leadership, from its beginning to the release of its key.
func (r *runner) term(ctx context.Context, l *Leadership) (e ending) {
	work, done := scope.Work(l.Context(), ctx)
	defer func() { // also if lead panics
		over := l.Err() // nil: it leads, as far as this process knows
		if e.ctx = context.Cause(ctx); errors.Is(over, lease.ErrLost) {
			e.lost = over
		}
		l.stop()
		done()
		// The key is released also if ctx has ended.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.hold.Patience)
		defer cancel()
		missed, err := l.release(release)
		if missed != nil {
			if errors.Is(missed, ErrBlocked) {
				missed = ErrBlocked // without the other one's key: keys are not logged
			}
			l.log.Warn("the next candidate leads", "err", missed)
		}
		e.released = err
		if e.lost != nil || over == nil && foundLost(e.released) {
			e.lost, e.released = e.released, nil
		}
	}()
	r.opts.Health.add(work, l) // l.release removes it
	defer r.watch(work)()
	err := r.lead(work, l.Token())
	ended := context.Cause(work)
	if ended == nil || !errors.Is(err, context.Canceled) && !errors.Is(err, ended) {
		e.lead = err
	}
	e.handed = errors.Is(ended, ErrHandedOver) || errors.Is(ended, lease.ErrAskedToRelease)
	return e
}

// foundLost reports whether a release that failed with err found the leadership already lost. A deadline that passes
// and a session that is closed during the release do not count.
func foundLost(err error) bool {
	lost, ok := errors.AsType[*lease.LostError](err)
	return ok && lost.Reason != lease.ReasonDeadlinePassed && lost.Reason != lease.ReasonSessionClosed
}

// watch calls onHang if lead has not returned within the timeout after the end of its context. Call stop when lead has
// returned.
func (r *runner) watch(work context.Context) (stop func()) {
	if r.runOpts.stopTimeout == 0 {
		return func() {}
	}
	returned, ended := make(chan struct{}), make(chan struct{})
	notYet := context.AfterFunc(work, func() {
		defer close(ended)
		select {
		case <-returned:
			return
		case <-time.After(r.runOpts.stopTimeout):
		}
		err := fmt.Errorf("election: run %q: lead has not returned %v after the end of its context: %w",
			r.name, r.runOpts.stopTimeout, context.Cause(work))
		r.log.Error("lead hangs", "err", err)
		if r.runOpts.onHang != nil {
			r.runOpts.onHang(err)
		}
	})
	return func() {
		close(returned)
		if !notYet() {
			<-ended
		}
	}
}

// after decides what follows a leadership that ended like e. Its results are those of [runner.round].
func (r *runner) after(e ending) (again bool, lost, err error) {
	switch {
	case e.ctx != nil:
		return false, nil, errors.Join(e.ctx, e.lost, e.lead, e.released)
	case errors.Is(e.lost, lease.ErrClosed):
		return false, nil, errors.Join(e.lost, e.lead)
	case e.lost != nil:
		return true, errors.Join(e.lost, e.lead), nil
	case e.handed:
		if e.lead != nil {
			r.log.Warn("lead failed as it was handed over", "err", e.lead)
		}
		return true, nil, e.released
	case e.lead != nil:
		return false, nil, errors.Join(fmt.Errorf("lead: %w", e.lead), e.released)
	}
	return r.runOpts.rejoin, nil, e.released
}

// RunOption is an option of [Run].
type RunOption func(*runOptions)

type runOptions struct {
	rejoin      bool
	onLost      func(error)
	stopTimeout time.Duration
	onHang      func(error)
}

// WithRejoin has [Run] campaign again when lead has returned nil. Default: Run returns.
func WithRejoin() RunOption {
	return func(o *runOptions) { o.rejoin = true }
}

// WithOnLost has [Run] call f after lead has returned and before Run campaigns again, if the leadership was lost. The
// error is the loss, which matches [lease.ErrLost], joined with lead's own error. If Run ends instead, because ctx has
// ended too or the session was closed, f is not called and Run's error includes the loss. Default: none.
func WithOnLost(f func(error)) RunOption {
	return func(o *runOptions) { o.onLost = f }
}

// WithStopTimeout reports a lead that hangs: if lead has not returned d after its context has ended, [Run] writes a
// line to the session's log and calls onHang once. OnHang should end the process, and the lease then expires. If onHang
// returns, or is nil, Run goes on waiting for lead, and nobody else can lead as long as the session renews the lease. D
// is not negative. Default, also for 0: Run waits and reports nothing.
func WithStopTimeout(d time.Duration, onHang func(error)) RunOption {
	return func(o *runOptions) { o.stopTimeout, o.onHang = d, onHang }
}

func newRunOptions(options []RunOption) (o runOptions, err error) {
	for i, set := range options {
		if set == nil {
			return o, fmt.Errorf("election: option %d of %d is nil, want a RunOption", i+1, len(options))
		}
		set(&o)
	}
	if o.stopTimeout < 0 {
		return o, fmt.Errorf("election: WithStopTimeout is %v, want 0 (for ever) or more", o.stopTimeout)
	}
	return o, nil
}
