package integration_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

func markedBy(tb testing.TB, kv clientv3.KV, resource string) *etcdfence.KV {
	tb.Helper()
	marks, err := etcdfence.NewMarks(kv, etcdfence.Options{})
	require.NoError(tb, err)
	k, err := marks.KV(resource)
	require.NoError(tb, err)
	return k
}

// TestEtcdfence_markAtEveryStep holds each request of an older holder's write, while a newer one claims and writes.
func TestEtcdfence_markAtEveryStep(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	for name, write := range fencedWrites {
		for _, row := range []struct {
			resource string
			claimed  bool // the older one, before
			step     int  // the request of its write that is held
		}{{"first/1", false, 1}, {"first/2", false, 2}, {"claimed/1", true, 1}} {
			in := faults.NewInterceptor(t)
			older := markedBy(t, srv.Client(t, etcdtest.Dial(in.DialOptions()...)), row.resource+name)
			newer := markedBy(t, client, row.resource+name)
			ctx := bounded(t)
			old, next := fence.NewContext(ctx, 41), fence.NewContext(ctx, 54)
			if row.claimed {
				require.NoError(t, older.Claim(old))
			}
			require.NoError(t, second2(client.Put(ctx, "data", "before")))

			hold, sent := make(chan struct{}), 0
			step := in.Inject(t, faults.Rule{
				Fault: faults.DelayRequest, Method: faults.Txn, Until: hold,
				Match: func(any) bool { sent++; return sent == row.step },
			})
			done := make(chan error, 1)
			go func() { done <- write(old, older, "data", "stale") }()
			awaitClosed(t, step.Hit(), "nothing is sent")
			require.NoError(t, newer.Claim(next))
			require.NoError(t, second2(newer.Put(next, "data", "new")))
			rev := srv.Revision(t)
			close(hold)
			stale := &fence.StaleError{Resource: row.resource + name, Token: 41, Highest: 54}
			require.Equal(t, stale, <-done, name)
			require.Equal(t, stale, older.Check(old))
			require.Equal(t, stale, older.Claim(old))
			require.Equal(t, rev, srv.Revision(t))
			require.NoError(t, write(next, newer, "data", "new"), name)
		}
	}
}

// TestEtcdfence_malformedMark finds what is no mark where the mark should be, of values that etcd orders before the
// token and behind it.
func TestEtcdfence_malformedMark(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	kv := markedBy(t, client, "r")
	ctx := fence.NewContext(bounded(t), 41)
	for _, value := range []string{"", "0", "41", "00000000000000000000", "000000000000000000041", "z"} {
		require.NoError(t, second2(client.Put(ctx, "fence/r", value)))
		rev := srv.Revision(t)
		for _, err := range []error{kv.Claim(ctx), kv.Check(ctx), second2(kv.Put(ctx, "data", ""))} {
			require.ErrorIs(t, err, etcdfence.ErrMalformedMark, "%q", value)
		}
		require.Equal(t, rev, srv.Revision(t))
	}
}
