package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// What a server answers in bad times is waited out, whether it has done what it was asked for or not: nobody is told of it,
// and nothing stays behind.
func TestSession_badTimesAreWaitedOut(t *testing.T) {
	for _, err := range []error{
		status.Error(codes.Unknown, "raft proposal dropped"), // the leader is being moved
		rpctypes.ErrGRPCNoSpace,
		rpctypes.ErrGRPCCorrupt,
		status.Error(codes.Canceled, "proxy: shutting down"),
	} {
		for name, lose := range map[string]fakeetcd.Message{"not done": fakeetcd.Request, "done": fakeetcd.Answer} {
			t.Run(status.Convert(err).Message()+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := start(t, lease.Options{})
					fail := func(m fakeetcd.Method) {
						e.c.Inject(m, fakeetcd.Fault{Times: 5, Lose: lose, Err: err})
					}
					fail(fakeetcd.Txn)
					l, err := e.s.Lock(t.Context(), "a")
					require.NoError(t, err)
					waiting := e.line(t, "a", 2)
					fail(fakeetcd.Txn)
					second, err := e.s.TryLock(t.Context(), "b")
					require.NoError(t, err)
					require.Len(t, e.keys(""), 2)
					fail(fakeetcd.Txn)
					require.NoError(t, l.Unlock(t.Context()))
					got := receive(t, waiting[0])
					require.NoError(t, got.err)
					fail(fakeetcd.Txn)
					require.NoError(t, got.lock.Unlock(t.Context()))
					got = receive(t, waiting[1])
					require.NoError(t, got.err)
					fail(fakeetcd.Txn)
					require.NoError(t, got.lock.Unlock(t.Context()))
					require.NoError(t, second.Unlock(t.Context()))
					require.Less(t, e.now(), time.Minute)
					require.Empty(t, e.keys(""))
					fail(fakeetcd.Revoke)
					require.NoError(t, e.s.Close(t.Context()))
					require.Empty(t, e.srv.Leases())
				})
			})
		}
	}
}
