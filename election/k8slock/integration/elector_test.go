package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	name = "jobs/nightly"
	key  = "/k8slock/" + name

	// Short, but a busy machine keeps them, and in keeping with the rule in the package's documentation: 8 ≥ 4 + 1 + 1 + 0.8.
	leaseDuration = 8 * time.Second
	renewDeadline = 4 * time.Second
	retryPeriod   = time.Second
	timeout       = time.Second
)

// candidate is client-go's elector on a Lock.
type candidate struct {
	*k8slock.Lock
	led  chan<- *term
	over chan time.Time // receives when the elector called OnStoppedLeading
}

// term is the time from one OnStartedLeading to the end of its work.
type term struct {
	*candidate
	token fence.Token
	work  context.Context //nolint:containedctx // the result of NewContext in the callback
}

// newCandidate returns a candidate whose terms go to led.
func newCandidate(t *testing.T, client *clientv3.Client, name string, led chan<- *term) *candidate {
	t.Helper()
	l, err := k8slock.New(client, name, k8slock.Options{Timeout: timeout})
	require.NoError(t, err)
	return &candidate{l, led, make(chan time.Time, 10)}
}

// start starts an elector that runs until the test ends.
func start(t *testing.T, client *clientv3.Client, name string, led chan<- *term) {
	t.Helper()
	c := newCandidate(t, client, name, led)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            c.Lock,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				work, err := c.NewContext(ctx)
				if err != nil {
					return // on a busy machine the tenure may be over already
				}
				token, _ := fence.FromContext(work)
				c.led <- &term{c, token, work}
			},
			OnStoppedLeading: func() { c.over <- time.Now() },
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		elector.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ran })
}

// managed is a manager of controller-runtime, without an API server, and its Runnable, which needs leader election.
type managed struct {
	*candidate
	stop context.CancelFunc
	done chan error // receives the result of the manager's Start
}

// NeedLeaderElection makes the manager start the Runnable only while the manager leads.
func (m *managed) NeedLeaderElection() bool { return true }

// Start works until the tenure or ctx ends.
func (m *managed) Start(ctx context.Context) error {
	work, err := m.NewContext(ctx)
	if err != nil {
		return err
	}
	token, _ := fence.FromContext(work)
	m.led <- &term{m.candidate, token, work}
	<-work.Done()
	return nil
}

func startManager(t *testing.T, srv *etcdtest.Server, led chan<- *term) *managed {
	t.Helper()
	m := &managed{candidate: newCandidate(t, srv.Client(t), name, led), done: make(chan error, 1)}
	mgr, err := manager.New(&rest.Config{Host: "https://127.0.0.1:1"}, manager.Options{
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: m.Lock,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       new(leaseDuration),
		RenewDeadline:                       new(renewDeadline),
		RetryPeriod:                         new(retryPeriod),
		Metrics:                             server.Options{BindAddress: "0"},
		HealthProbeBindAddress:              "0",
		Logger:                              logr.Discard(),
	})
	require.NoError(t, err)
	require.NoError(t, mgr.Add(m))
	ctx, cancel := context.WithCancel(t.Context())
	m.stop = cancel
	go func() { m.done <- mgr.Start(ctx) }()
	t.Cleanup(cancel)
	return m
}

func TestManager_oneLeadsAndThenTheOther(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	srv := etcdtest.Start(t, etcdtest.Options{})
	led := make(chan *term, 10)
	a, b := startManager(t, srv, led), startManager(t, srv, led)
	first := rig.Await(t, led, "nobody leads")
	if first.candidate == b.candidate {
		a, b = b, a
	}
	require.Empty(t, led)
	a.stop()
	require.NoError(t, rig.Await(t, a.done, "the manager did not stop"))
	require.Error(t, first.work.Err())

	second := rig.Await(t, led, "nobody leads")
	require.Greater(t, second.token, first.token)

	// A manager that loses its lease ends with an error, as with a record on an API server.
	_, err := srv.Client(t).Revoke(rig.Bounded(t), clientv3.LeaseID(srv.KeyValues(t, key)[0].Lease))
	require.NoError(t, err)
	rig.Await(t, second.work.Done(), "the context of the work did not end")
	require.ErrorContains(t, rig.Await(t, b.done, "the manager did not stop"), "leader election lost")
}

// One of three endpoints accepts connections and never answers. Leaders that share a client, so that their requests
// meet the dead endpoint at irregular times, go on leading.
func TestElector_oneOfThreeEndpointsDead(t *testing.T) {
	const electors, renewals = 5, 10
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	proxies, addrs := rig.NewProxies(t, cluster.Endpoints())
	in := faults.NewInterceptor(t)
	client := etcdtest.NewClient(t, addrs, etcdtest.Dial(in.DialOptions()...))
	var terms []*term
	begun := make(chan *term, electors)
	lost := make(chan string, electors)
	for i := range electors {
		start(t, client, fmt.Sprint(name, i), begun)
		led := rig.Await(t, begun, "nobody leads")
		context.AfterFunc(led.work, func() { lost <- led.Describe() })
		terms = append(terms, led)
	}

	dead := proxies[0]
	dead.BlackHole()
	t.Cleanup(dead.Restore) // runs before the electors release
	began := time.Now()
	watch := etcdtest.NewClient(t, cluster.Endpoints()[:1]).Watch(t.Context(), key, clientv3.WithPrefix())
	written := make(map[string]int) // renewals
	for done := 0; done < electors; {
		select {
		case resp := <-watch:
			require.NoError(t, resp.Err())
			for _, event := range resp.Events {
				k := string(event.Kv.Key)
				if written[k]++; written[k] == renewals {
					done++
				}
			}
		case k := <-lost:
			require.FailNow(t, "leadership lost", "%s, after %v, with %v", k, time.Since(began), written)
		case <-time.After(rig.Patience):
			require.FailNow(t, "there are no renewals", "%v", written)
		}
	}
	unanswered := in.Sent(faults.Txn) - in.Answered(faults.Txn)
	t.Logf("%d renewals each in %v, %d requests to write a record and %d to renew a lease not answered", renewals, time.Since(began), unanswered,
		in.Sent(faults.LeaseKeepAlive)-in.Answered(faults.LeaseKeepAlive))
	require.Greater(t, unanswered, electors*renewals/5, "too few requests reached the dead endpoint to prove anything")
	for _, led := range terms {
		require.NoError(t, led.work.Err())
		require.Empty(t, led.over)
		token, ok := led.Token()
		require.True(t, ok)
		require.Equal(t, led.token, token)
	}
}
