package lease_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// A lease that holds nothing and refuses us, since somebody has attached a key to it, is replaced, once for a call. One on
// which a lock stands is not, nor where it is permission for the name that is lacking.
func TestSession_replacesALeaseThatOthersHaveSpoilt(t *testing.T) {
	for name, row := range map[string]struct {
		denied, hidden int  // how often we are refused to acquire, and to see the keys of the lease
		held, want     bool // a lock stands on it; it is replaced
		obtained       bool
	}{
		"spoilt":            {denied: 1, hidden: 1, want: true, obtained: true},
		"spoilt, once more": {denied: 2, hidden: 2, want: true},
		"a lock is held":    {denied: 1, hidden: 1, held: true},
		"no permission":     {denied: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, lease.Options{})
				before := e.s.Status().LeaseID
				if row.held {
					e.lock(t, "b")
				}
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: row.denied, Err: errDenied, Match: writes})
				if row.hidden > 0 {
					e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Times: row.hidden, Err: errDenied})
				}
				_, err := e.s.TryLock(t.Context(), "a")
				if row.obtained {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
				}
				require.Equal(t, row.want, e.s.Status().LeaseID != before)
			})
		})
	}
}
