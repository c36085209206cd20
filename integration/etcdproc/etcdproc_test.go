package etcdproc

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) {
	Serve()
	os.Exit(m.Run())
}

// A defragmentation waits until the server goes on, and nobody else gets at the server's backend meanwhile.
func TestProcess_GoOn_whileADefragmentationWaits(t *testing.T) {
	c, err := Start(t.Context(), t.TempDir(), 1, Settings{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Kill()) }()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	m := c.Members[0]
	require.Error(t, m.GoOn(), "it is not stalled")

	require.NoError(t, m.Stall())
	defragmented, on := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.Defragment(t.Context(), m.Endpoint())
		defragmented <- err
	}()
	require.Eventually(t, func() bool { // the size of the database is not told any more
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := client.Status(ctx, m.Endpoint())
		return err != nil
	}, time.Minute, time.Millisecond)
	go func() { on <- m.GoOn() }()
	select {
	case err := <-on:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it does not go on")
	}
	require.NoError(t, <-defragmented)
}

// Nobody picks a port twice, though no server listens there yet. A second process cannot either.
func TestPickAddr_reserves(t *testing.T) {
	picked := map[string]bool{}
	for range 500 {
		addr, err := PickAddr()
		require.NoError(t, err)
		require.False(t, picked[addr])
		picked[addr] = true
	}
}
