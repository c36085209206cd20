package security_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/pki"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// unreached are the lines of the golden list that the story below does not produce. Some are about restores, and log
// numbers and names of queues only. Others are about a slow log handler, about an attack, or from package k8slock,
// which is a module of its own.
var unreached = []string{
	"etcd's revisions went back",
	"a renewal was answered with an old revision",
	"a released key is there again",
	"released keys that may be there again",
	"tenure over",
	"a lease that is not used any more",
	"records were dropped",
	"the lease is replaced",
	"was not asked to hand over", // logs the error of a request, as other lines do
	"has not answered yet",       // logs the error of a connection, as other lines do
	"does not see candidates of a higher priority",
	"(*ast.Ident)", // an event that client-go makes k8slock record
}

// story is a sequence of events during which all logs are collected.
type story struct {
	*secured

	secrets *secrets
	ours    *written // leasefence's log, at the lowest level
	etcds   *written // the log of etcd's client, at the lowest level
	in      *faults.Interceptor
	proxy   *faults.Proxy
}

func newStory(t *testing.T) *story {
	t.Helper()
	s := &story{secured: startSecured(t), secrets: &secrets{all: map[string]string{}}, ours: new(written), etcds: new(written)}
	s.secrets.add("a password", "first password")
	s.in = faults.NewInterceptor(t)
	s.in.OnAnswer(s.secrets.learn)
	s.proxy = faults.NewProxy(t, s.Endpoint())
	return s
}

// logged makes a client log at the lowest level.
func (s *story) logged() etcdtest.ClientOption {
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), s.etcds, zapcore.DebugLevel)
	return func(cfg *clientv3.Config) { cfg.Logger = zap.New(core) }
}

func (s *story) options(ttl time.Duration) lease.Options {
	return lease.Options{
		TTL: ttl, Prefix: "jobs/", Owner: s.secrets.add("an owner", "owner of everything"),
		Logger: slog.New(slog.NewJSONHandler(s.ours, &slog.HandlerOptions{Level: slog.Level(math.MinInt32)})),
	}
}

func (s *story) session(t *testing.T, ttl time.Duration) *lease.Session {
	t.Helper()
	client := s.app(t, s.logged(), etcdtest.Via(s.proxy.Addr()), etcdtest.Dial(s.in.DialOptions()...))
	return rig.NewSession(t, client, s.options(ttl))
}

// Passwords, authentication tokens, owners, values and lease IDs are never logged. The story produces every line of the
// golden list but unreached ones.
func TestLog_hasNoSecrets(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.locks(t)
	s.elections(t)
	s.losses(t)
	s.certificates(t)

	known := map[string]bool{}
	for _, line := range readGolden(t) {
		known[line] = false
	}
	for line := range strings.Lines(s.ours.String()) {
		var record struct{ Level, Msg string }
		require.NoError(t, json.Unmarshal([]byte(line), &record))
		found := false
		for want := range known {
			if strings.HasPrefix(want, record.Level+" "+record.Msg+" [") {
				known[want], found = true, true
			}
		}
		require.True(t, found, "not in the golden list: %s", line)
	}
	for line, reached := range known {
		if !reached && !strings.HasPrefix(line, "With ") && !hasAny(line, unreached) {
			require.Fail(t, "the story has not produced this line", line)
		}
	}
	s.secrets.mu.Lock()
	defer s.secrets.mu.Unlock()
	require.Greater(t, len(s.secrets.all), 10)
	for secret, what := range s.secrets.all {
		for whose, log := range map[string]string{"ours": s.ours.String(), "of etcd's client": s.etcds.String()} {
			require.NotEmpty(t, log)
			for line := range strings.Lines(log) {
				require.NotContains(t, line, secret, "%s in the log, %s", what, whose)
			}
		}
	}
}

func hasAny(line string, texts []string) bool {
	for _, text := range texts {
		if strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// locks takes locks, waits for them, finds foreign keys beside them and loses them; renewals fail for a while.
func (s *story) locks(t *testing.T) {
	t.Helper()
	a, b := s.session(t, longTTL), s.session(t, longTTL)
	stray, err := s.root.Grant(rig.Bounded(t), 60)
	require.NoError(t, err)
	s.secrets.addLease(int64(stray.ID))
	require.NoError(t, second(s.root.Put(rig.Bounded(t), fmt.Sprintf("jobs/n/%x-stray", int64(stray.ID)), s.secrets.add("a value", "put by hand"))))
	first := rig.MustLock(t, a, "n")
	_, err = b.TryLock(rig.Bounded(t), "n")
	require.ErrorIs(t, err, lease.ErrLocked)
	next := rig.Ways[0].Wait(t, b, "n")
	require.NoError(t, first.Unlock(rig.Bounded(t)))
	taken := rig.Await(t, next, "the waiter was not served")
	require.NoError(t, second(s.root.Delete(rig.Bounded(t), taken.Key())))
	rig.RequireLost(t, rig.AwaitEnd(t, taken.Context()), lease.ReasonKeyDeleted)

	// The permission is revoked before the key of a held lock is watched, and before the key of a waiter that gives up is
	// deleted.
	forbidden := make(chan struct{})
	watches := s.in.Inject(t, faults.Rule{Fault: faults.DelayRequest, Method: faults.Watch, Until: forbidden})
	held := rig.MustLock(t, b, "held")
	waiting, giveUp := context.WithCancel(rig.Bounded(t))
	gaveUp := make(chan struct{})
	go func() {
		defer close(gaveUp)
		_, _ = a.Lock(waiting, "held")
	}()
	rig.AwaitQueue(t, s.root, "jobs/held", 2)
	<-watches.Hit()
	watches.Remove()
	s.forbid(t)
	close(forbidden)
	s.ours.await(t, "the key of a lock is not watched")
	giveUp()
	<-gaveUp
	s.ours.await(t, "keys of failed attempts not deleted yet")
	s.permit(t)
	rig.AwaitState(t, a, lease.StateHeld)
	rig.AwaitState(t, b, lease.StateHeld)

	s.proxy.Refuse()
	rig.AwaitState(t, b, lease.StateJeopardy)
	s.proxy.Restore()
	rig.AwaitState(t, b, lease.StateHeld)
	require.NoError(t, context.Cause(held.Context()))
	require.NoError(t, b.Close(rig.Bounded(t)))
	require.NoError(t, a.Close(rig.Bounded(t)))
}

// handsOver makes a leader hand over to a candidate of higher priority; the leader's function fails then.
func (s *story) handsOver(t *testing.T, a, b *lease.Session, first, preferred string) {
	t.Helper()
	ctx, end := context.WithCancel(rig.Bounded(t))
	defer end()
	leads, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		_ = election.Run(ctx, a, "role", election.Options{Value: first}, func(ctx context.Context, _ fence.Token) error {
			leads <- struct{}{}
			<-ctx.Done()
			return errors.New("it failed")
		})
	}()
	<-leads
	l, err := election.Campaign(rig.Bounded(t), b, "role", election.Options{Value: preferred, Priority: 1})
	require.NoError(t, err)
	s.ours.await(t, "lead failed as it was handed over")
	end()
	<-done
	require.NoError(t, l.Resign(rig.Bounded(t)))
}

// elections wins, transfers and loses leaderships in every phase.
func (s *story) elections(t *testing.T) {
	t.Helper()
	a, b := s.session(t, longTTL), s.session(t, longTTL)
	value := func(n int) string { return s.secrets.add("a value", fmt.Sprintf("value number %d of a candidate", n)) }
	l, err := election.Campaign(rig.Bounded(t), a, "role", election.Options{Value: value(1)})
	require.NoError(t, err)
	watching, stop := context.WithCancel(rig.Bounded(t))
	defer stop()
	seen := make(chan string, 100)
	go func() {
		for leader, err := range election.Observe(watching, s.app(t, s.logged()), "jobs/role") {
			if err == nil {
				seen <- leader.Value
			}
		}
	}()
	require.Equal(t, value(1), <-seen)
	require.NoError(t, l.Proclaim(rig.Bounded(t), value(2)))
	require.Equal(t, value(2), <-seen)
	require.ErrorIs(t, l.Transfer(rig.Bounded(t), value(3)), election.ErrNoCandidate)
	next := make(chan *election.Leadership, 1)
	go func() {
		l, _ := election.Campaign(rig.Bounded(t), b, "role", election.Options{Value: value(4)})
		next <- l
	}()
	rig.AwaitQueue(t, s.root, "jobs/role", 2)
	require.NoError(t, l.Transfer(rig.Bounded(t), value(4)))
	leads := <-next
	require.NotNil(t, leads)

	// The lease is lost while a candidate waits.
	ended, end := context.WithCancel(rig.Bounded(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = election.Run(ended, a, "role", election.Options{Value: value(5)}, func(context.Context, fence.Token) error { return nil })
	}()
	rig.AwaitQueue(t, s.root, "jobs/role", 2)
	s.revoke(t, a)
	s.ours.await(t, "lost while waiting to lead")
	s.ours.await(t, "new lease")
	end()
	<-done
	require.NoError(t, leads.Resign(rig.Bounded(t)))

	s.transferInVain(t, a, b, value(7))
	s.handsOver(t, a, b, value(8), value(9))

	// The leader's function hangs, and then the key cannot be released.
	awake := make(chan struct{})
	err = election.Run(rig.Bounded(t), b, "role", election.Options{Value: value(6)}, func(ctx context.Context, _ fence.Token) error {
		leader, _ := election.FromContext(ctx)
		require.NoError(t, leader.Resign(ctx))
		<-awake
		s.forbid(t) //nolint:contextcheck // the leader's context has ended
		return nil
	}, election.WithRejoin(), election.WithStopTimeout(time.Millisecond, func(error) { close(awake) }))
	require.ErrorContains(t, err, "permission denied")
	s.permit(t)
}

// transferInVain transfers the leadership to a candidate that leaves at the last moment.
func (s *story) transferInVain(t *testing.T, a, b *lease.Session, value string) {
	t.Helper()
	left := make(chan struct{})
	waiting, giveUp := context.WithCancel(rig.Bounded(t))
	defer giveUp()
	over, stop := context.WithCancel(rig.Bounded(t))
	defer stop()
	terms := 0
	err := election.Run(over, b, "role", election.Options{}, func(ctx context.Context, _ fence.Token) error {
		if terms++; terms == 2 {
			stop()
			return nil
		}
		go func() {
			defer close(left)
			_, _ = election.Campaign(waiting, a, "role", election.Options{Value: value})
		}()
		leader, _ := election.FromContext(ctx)
		for leader.Transfer(ctx, value) != nil && ctx.Err() == nil { // until the candidate stands
			time.Sleep(time.Millisecond)
		}
		giveUp()
		<-left
		rig.AwaitQueue(t, s.root, "jobs/role", 1) //nolint:contextcheck // the leader's context has ended
		return nil
	}, election.WithRejoin())
	require.ErrorIs(t, err, context.Canceled)
	s.ours.await(t, `"err":"election: no such candidate"`)
}

// revoke revokes a session's lease.
func (s *story) revoke(t *testing.T, session *lease.Session) {
	t.Helper()
	require.NoError(t, second(s.root.Revoke(rig.Bounded(t), session.Status().LeaseID)))
}

// losses loses locks by a revoked lease and by a changed password.
func (s *story) losses(t *testing.T) {
	t.Helper()
	a := s.session(t, shortTTL)
	held := rig.MustLock(t, a, "n")
	s.revoke(t, a)
	require.ErrorIs(t, rig.AwaitEnd(t, held.Context()), lease.ErrLost)
	held = rig.MustLock(t, a, "n")
	require.NoError(t, second(s.root.UserChangePassword(rig.Bounded(t), "app", s.secrets.add("a password", "second password"))))
	rig.RequireLost(t, rig.AwaitEnd(t, held.Context()), lease.ReasonDeadlinePassed)
	_, err := a.Lock(rig.Bounded(t), "n")
	require.ErrorContains(t, err, "authentication failed")
}

// certificates loses a lock when the server's certificate has expired.
func (s *story) certificates(t *testing.T) {
	t.Helper()
	ca := newAuthority(t, "ours")
	place, id := newFiles(t, ca, ca.issue(t, "server")), holding(ca.issue(t, "client"))
	srv := place.start(t)
	proxy := faults.NewProxy(t, srv.Endpoint())
	client := srv.Client(t, s.logged(), etcdtest.Via(proxy.Addr()), etcdtest.TLS(id.config(ca)), etcdtest.Dial(s.in.DialOptions()...))
	a := rig.NewSession(t, client, s.options(shortTTL))
	held := rig.MustLock(t, a, "n")
	place.install(t, ca.issue(t, "server", pki.Expired))
	proxy.Cut()
	cause := rig.AwaitEnd(t, held.Context())
	rig.RequireLost(t, cause, lease.ReasonDeadlinePassed)
	require.ErrorContains(t, cause, "x509: certificate has expired")
}
