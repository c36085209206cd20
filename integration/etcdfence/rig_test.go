package etcdfence_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// heldBy returns a KV that is fenced by a held lock.
func heldBy(tb testing.TB, kv clientv3.KV, h etcdfence.Holder) *etcdfence.KV {
	tb.Helper()
	k, err := etcdfence.NewKV(kv, h)
	require.NoError(tb, err)
	return k
}

// markedBy returns a KV that is fenced by a mark.
func markedBy(tb testing.TB, kv clientv3.KV, resource string) *etcdfence.KV {
	tb.Helper()
	marks, err := etcdfence.NewMarks(kv, etcdfence.Options{})
	require.NoError(tb, err)
	k, err := marks.KV(resource)
	require.NoError(tb, err)
	return k
}

// second returns only the error of a call.
func second[T any](_ T, err error) error { return err }
