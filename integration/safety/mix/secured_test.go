package mix

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

// struck returns a fault and the client that it is aimed at.
func struck(t *testing.T) (*strike, *client) {
	t.Helper()
	report := newReport(1)
	c := &client{id: &identity{refused: refusals{report: report, counts: map[error]int{}}}}
	n := &nemesis{run: &run{report: report, tape: newTape(t.TempDir()), cluster: &etcdtest.Cluster{Cluster: &etcdproc.Cluster{}}}, life: t.Context()}
	ended, cancel := context.WithCancel(t.Context())
	cancel() // so that the fault ends at once
	return &strike{nemesis: n, ctx: ended, rng: rand.New(rand.NewPCG(1, 2))}, c
}

func TestDispossess_hitsIfTheClientGotThatError(t *testing.T) {
	for name, refused := range map[string]error{"that error": rpctypes.ErrAuthFailed, "another error": rpctypes.ErrPermissionDenied} {
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
			require.Equal(t, name == "that error", hit)
			require.Equal(t, 1, given)
			require.Equal(t, 1, s.report.Counts[staleAuth])
		})
	}
}
