package election_test

import (
	"context"
	"runtime"
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
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
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
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
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
		inBubble(t, name, func(t *testing.T) {
			p, other := newPair(t)
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
