//go:build unix

package etcdproc

import (
	"context"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	Serve()
	os.Exit(m.Run())
}

func TestProcess_reportsThatAPortIsTaken(t *testing.T) {
	members, err := NewMembers(t.TempDir(), 1)
	require.NoError(t, err)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", members[0].ClientAddr)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()

	p := &Process{order: order{Member: members[0]}}
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	require.ErrorIs(t, p.Restart(ctx), syscall.EADDRINUSE)
}
