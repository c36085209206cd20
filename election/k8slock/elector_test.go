package k8slock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// settle is longer than a candidate waits between two tries: client-go adds up to JitterFactor to its period.
const settle = retryPeriod * 23 / 10

// runner is client-go's elector on a candidate.
type runner struct {
	*candidate
	cfg  leaderelection.LeaderElectionConfig
	stop context.CancelFunc
	ran  chan struct{} // closed when Run has returned

	led     chan time.Time // receives when each term began
	stopped chan time.Time
	work    context.Context //nolint:containedctx // the result of NewContext in the callback
	leading context.Context //nolint:containedctx // the context given to the callback
	token   fence.Token
}

func newRunner(t *testing.T, srv *fakeetcd.Server, opts k8slock.Options) *runner {
	t.Helper()
	r := &runner{candidate: newCandidate(t, srv, opts), led: make(chan time.Time, 10), stopped: make(chan time.Time, 10)}
	r.cfg = leaderelection.LeaderElectionConfig{
		Lock:            r.Lock,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				work, err := r.NewContext(ctx)
				if err != nil {
					t.Errorf("new context: %v", err)
					return
				}
				r.leading, r.work = ctx, work
				r.token, _ = fence.FromContext(work)
				r.led <- time.Now()
			},
			OnStoppedLeading: func() { r.stopped <- time.Now() },
		},
	}
	return r
}

// run starts the elector.
func (r *runner) run(t *testing.T) *runner {
	t.Helper()
	elector, err := leaderelection.NewLeaderElector(r.cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r.stop, r.ran = cancel, make(chan struct{})
	ran := r.ran
	go func() {
		defer close(ran)
		elector.Run(ctx)
	}()
	return r
}

// start starts an elector with the usual options.
func start(t *testing.T, srv *fakeetcd.Server) *runner {
	t.Helper()
	return newRunner(t, srv, k8slock.Options{}).run(t)
}

// end stops the elector and waits for it.
func (r *runner) end() {
	r.stop()
	<-r.ran
}

// first returns the runner that leads next, and the others.
func first(runners ...*runner) (leader *runner, others []*runner) {
	for {
		for i, r := range runners {
			select {
			case <-r.led:
				return r, append(append([]*runner{}, runners[:i]...), runners[i+1:]...)
			default:
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func requireNotLeading(t *testing.T, runners ...*runner) {
	t.Helper()
	synctest.Wait()
	for _, r := range runners {
		require.Empty(t, r.led, "somebody else leads")
	}
}

func TestElector_onlyOneLeadsAndTheNextAfterARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		leader, others := first(start(t, srv), start(t, srv), start(t, srv))
		var last fence.Token
		for turn := range 3 {
			require.Greater(t, leader.token, last, "turn %d", turn)
			last = leader.token
			time.Sleep(10 * leaseDuration)
			requireNotLeading(t, others...)
			require.NoError(t, leader.work.Err())
			require.Equal(t, turn, leader.get(t).LeaderTransitions)

			began := time.Now()
			leader.end()
			require.Error(t, leader.work.Err())
			if turn < 2 {
				leader, others = first(others...)
				require.LessOrEqual(t, time.Since(began), settle)
			}
		}
		time.Sleep(leaseDuration + time.Second)
		require.Empty(t, srv.Leases())
	})
}

// With durations that keep the rule in the package's documentation, OnStoppedLeading is called before the deadline, even
// if the calls of a release are not answered.
func TestElector_stopsInTimeWhateverIsNotAnswered(t *testing.T) {
	for what, lose := range map[string]fakeetcd.Message{"requests": fakeetcd.Request, "answers": fakeetcd.Answer} {
		for _, method := range []fakeetcd.Method{fakeetcd.Any, fakeetcd.Txn, fakeetcd.Get} {
			inBubble(t, method.String()+" "+what, func(t *testing.T) {
				srv := newServer(t)
				for i := range 20 {
					leader := start(t, srv)
					<-leader.led
					time.Sleep(leaseDuration + retryPeriod/40 + time.Duration(i)*retryPeriod/20) // anywhere between two renewals, and at none
					if method == fakeetcd.Get {                                                  // only a release calls Get, so renewals must fail
						leader.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: fakeetcd.ErrUnavailable})
					}
					leader.c.Inject(method, fakeetcd.Fault{Lose: lose})
					renewed := leader.c.Calls(fakeetcd.Txn)
					until := renewed[len(renewed)-1].Sent.Add(leaseDuration - margin)
					require.False(t, (<-leader.stopped).After(until))
					leader.c.Reset()
					leader.end()
					time.Sleep(2 * leaseDuration)
				}
			})
		}
	}
}

// With durations that client-go accepts although they are not safe, the context of the work still ends in time.
func TestElector_theWorkEndsInTimeWhateverTheDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a, b := newRunner(t, srv, k8slock.Options{}), newRunner(t, srv, k8slock.Options{})
		a.cfg.LeaseDuration, a.cfg.RenewDeadline, a.cfg.RetryPeriod = 11*time.Second, 10*time.Second, 8*time.Second
		b.cfg.LeaseDuration, b.cfg.RenewDeadline, b.cfg.RetryPeriod = 11*time.Second, 5*time.Second, time.Second
		a.run(t)
		first(a)
		b.run(t)
		time.Sleep(leaseDuration)
		synctest.Wait()
		a.c.Cut()
		first(b)
		require.Empty(t, a.stopped, "client-go still believes that it leads")
		requireLost(a.work, t)
		require.NoError(t, a.leading.Err())
		require.Greater(t, b.token, a.token)
		a.end()
		b.end()
	})
}

// An elector that stopped without a release, as by client-go's default, begins a new tenure when it runs again.
func TestElector_runsAgainWithoutARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		r := newRunner(t, srv, k8slock.Options{})
		r.cfg.ReleaseOnCancel = false
		r.run(t)
		first(r)
		before, given := r.token, r.leading
		r.end()
		require.NotEmpty(t, srv.Keys(key))

		r.run(t)
		first(r)
		require.Greater(t, r.token, before)
		_, err := r.NewContext(given)
		require.ErrorIs(t, err, k8slock.ErrNotLeading, "a delayed callback does not get the next tenure's token")
		require.ErrorIs(t, err, context.Canceled)
		r.end()
	})
}
