package mix

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/lease"
)

// bounded is a context that ends a test which hangs.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func dialed(t *testing.T, config clientv3.Config) *clientv3.Client {
	t.Helper()
	client, err := dial(bounded(t), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestSecured_letsClientsDoWhatTheyNeedAndNoMore(t *testing.T) {
	s, err := newSecured(t.TempDir())
	require.NoError(t, err)
	cluster, err := etcdproc.Start(bounded(t), t.TempDir(), 1, etcdproc.Options{Settings: s.settings()})
	require.NoError(t, err)
	defer func() { require.NoError(t, cluster.Kill()) }()
	endpoint := cluster.Members[0].Endpoint()
	require.NoError(t, s.enable(bounded(t), cluster.Endpoints(), []string{holderUser(0), clientUser(1)}))
	root := dialed(t, s.root.config(endpoint))

	t.Run("a process of its own", func(t *testing.T) {
		config, err := s.holders.Client()
		require.NoError(t, err)
		user := holderUser(0)
		etcd := dialed(t, clientv3.Config{
			Endpoints: []string{endpoint}, TLS: config, Username: user, Password: passwordOf(user), Logger: zap.NewNop(),
		})
		_, err = etcd.Put(bounded(t), roundNames(1).Hot[0], "")
		require.NoError(t, err)
	})
	t.Run("permissions", func(t *testing.T) {
		id, err := s.newIdentity(clientUser(1))
		require.NoError(t, err)
		etcd := dialed(t, id.config(endpoint))
		for key, want := range map[string]error{
			namesPrefix: nil, peerPrefix + "a": nil, "mix": rpctypes.ErrPermissionDenied, "mix0": rpctypes.ErrPermissionDenied,
		} {
			_, err := etcd.Put(bounded(t), key, "")
			require.ErrorIs(t, err, want, key)
		}
		require.NoError(t, forbid(bounded(t), root, id.user))
		_, err = etcd.Get(bounded(t), namesPrefix)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.NoError(t, permit(bounded(t), root, id.user))
		_, err = etcd.Get(bounded(t), namesPrefix)
		require.NoError(t, err)
	})
	t.Run("certificates", func(t *testing.T) {
		id, err := s.newIdentity(clientUser(1))
		require.NoError(t, err)
		strange, err := s.stranger.Issue("")
		require.NoError(t, err)
		for name, cert := range map[string]*tls.Certificate{"none": {}, "of another authority": &strange} {
			good, shown := id.offer(cert)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			_, err = dial(ctx, id.config(endpoint))
			cancel()
			require.Error(t, err, name)
			<-shown
			_, shown = id.offer(good)
			dialed(t, id.config(endpoint))
			<-shown
		}
	})
	t.Run("tokens", func(t *testing.T) {
		resp, err := root.Authenticate(bounded(t), clientUser(1), passwordOf(clientUser(1)))
		require.NoError(t, err)
		etcd := dialed(t, clientv3.Config{
			Endpoints: []string{endpoint}, TLS: s.root.tls(), Token: resp.Token, Logger: zap.NewNop(),
		})
		_, err = etcd.Get(bounded(t), namesPrefix)
		require.NoError(t, err)
		require.Eventually(t, func() bool { // seldom: each use gives it another two seconds
			_, err := etcd.Get(bounded(t), namesPrefix)
			return errors.Is(err, rpctypes.ErrInvalidAuthToken)
		}, time.Minute, 4*time.Second)
	})
	t.Run("metrics", func(t *testing.T) {
		m := newMonitor(root, cluster.Endpoints(), s.root.tls())
		m.http.Timeout = 0 // the context's alone
		_, ok := m.expiredAt(bounded(t), endpoint)
		require.True(t, ok)
	})
}

// struck is a fault that is about a client alone.
func struck(t *testing.T) (*strike, *client) {
	t.Helper()
	c := &client{id: &identity{refused: refusals{counts: map[error]int{}}}}
	n := &nemesis{
		ttl: time.Second, tape: newTape(t.TempDir()), cluster: &etcdproc.Cluster{}, life: t.Context(),
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel() // it need not last
	return &strike{nemesis: n, ctx: ended, rng: rand.New(rand.NewPCG(1, 2))}, c
}

func TestDispossess_firesIfTheClientWasRefused(t *testing.T) {
	for name, refused := range map[string]error{"for that": rpctypes.ErrAuthFailed, "for something else": rpctypes.ErrPermissionDenied} {
		t.Run(name, func(t *testing.T) {
			s, c := struck(t)
			given := 0
			hit := s.dispossess(c, rpctypes.ErrAuthFailed, func(context.Context, string) error {
				c.id.refused.count(refused)
				c.id.refused.count(rpctypes.ErrInvalidAuthToken)
				return nil
			}, func(context.Context, string) error {
				given++
				return nil
			})
			require.Equal(t, name == "for that", hit)
			require.Equal(t, 1, given)
			require.Zero(t, c.id.refused.of(rpctypes.ErrInvalidAuthToken), "it has not expired")
			c.id.refused.count(rpctypes.ErrInvalidAuthToken)
			require.Equal(t, 1, c.id.refused.of(rpctypes.ErrInvalidAuthToken))
		})
	}
}

// What was asked for without an answer may be done after it was undone.
func TestDispossess_undoesAgainWhatMayStillCome(t *testing.T) {
	s, c := struck(t)
	given := 0
	require.False(t, s.dispossess(c, rpctypes.ErrAuthFailed, func(context.Context, string) error {
		c.id.refused.count(rpctypes.ErrAuthFailed)
		return errors.New("no answer")
	}, func(context.Context, string) error {
		given++
		return nil
	}))
	require.Equal(t, 2, given)
}

// A process that was paused may ask before its timers run.
func TestScoped_looksAtTheClock(t *testing.T) {
	s := scoped{ctx: t.Context(), session: overdue{}}
	require.ErrorIs(t, s.Err(), lease.ErrLost)
}

// overdue is a session whose deadline has passed.
type overdue struct{}

func (overdue) Status() lease.Status {
	return lease.Status{State: lease.StateLost, Err: &lease.LostError{Reason: lease.ReasonDeadlinePassed}}
}
