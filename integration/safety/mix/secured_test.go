package mix

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

// struck returns a fault that ends at once.
func struck(t *testing.T) *strike {
	t.Helper()
	n := &nemesis{run: &run{report: newReport(1), tape: newTape(t.TempDir()), cluster: &etcdtest.Cluster{Cluster: &etcdproc.Cluster{}}}, life: t.Context()}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	return &strike{nemesis: n, ctx: ended, rng: rand.New(rand.NewPCG(1, 2))}
}

func TestDispossess_hitsIfTheClientGotThatError(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	for name, refused := range map[string]error{"that error": rpctypes.ErrFutureRev, "another error": rpctypes.ErrAuthFailed} {
		t.Run(name, func(t *testing.T) {
			c := &client{id: &identity{}, in: faults.NewInterceptor(t)}
			c.etcd = server.Client(t, etcdtest.Dial(c.in.DialOptions()...))
			given := 0
			hit := struck(t).dispossess(c, refused, func(ctx context.Context, _ string) error {
				_, err := c.etcd.Compact(ctx, 1000)
				require.ErrorIs(t, err, rpctypes.ErrFutureRev)
				return nil
			}, func(context.Context, string) error {
				given++
				return nil
			})
			require.Equal(t, name == "that error", hit)
			require.Equal(t, 1, given)
		})
	}
}
