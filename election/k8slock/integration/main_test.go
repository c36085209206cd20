package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	name = "jobs/nightly"
	key  = "/k8slock/" + name

	// Short, and in keeping with the rule in the package's documentation: 4 ≥ 2 + 0.5 + 0.5 + 0.4.
	leaseDuration = 4 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 500 * time.Millisecond
	timeout       = 500 * time.Millisecond
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
