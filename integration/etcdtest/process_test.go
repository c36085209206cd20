//go:build unix

package etcdtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestProcess_pausesResumesAndKeepsDataOverAKill(t *testing.T) {
	ctx := bounded(t)
	p := etcdtest.StartProcess(t)
	client := p.Client(t)
	_, err := client.Put(ctx, "key", "1")
	require.NoError(t, err)

	p.Pause(t)
	result := make(chan error, 1)
	go func() {
		_, err := client.Put(ctx, "key", "2")
		result <- err
	}()
	require.Empty(t, result)
	p.Resume(t)
	require.NoError(t, <-result)

	p.Kill(t)
	p.Kill(t)
	p.Restart(t)
	resp, err := client.Get(ctx, "key")
	require.NoError(t, err)
	require.Equal(t, "2", string(resp.Kvs[0].Value))
}
