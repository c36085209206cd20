package etcd

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/connectivity"
)

// states are a connection's, each after a change of the state. The last change never comes.
type states []connectivity.State

func (s *states) GetState() connectivity.State { return (*s)[0] }

func (s *states) WaitForStateChange(context.Context, connectivity.State) bool {
	*s = (*s)[1:]
	return len(*s) > 0
}

func TestOnReconnect(t *testing.T) {
	const ready, down = connectivity.Ready, connectivity.TransientFailure
	for name, row := range map[string]struct {
		seen states
		want int
	}{
		"ready from the start":          {states{ready}, 0},
		"the first connection":          {states{down, ready}, 1},
		"lost":                          {states{ready, down}, 0},
		"lost twice":                    {states{ready, down, ready, down, ready}, 2},
		"back before the process looks": {states{ready, ready}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			onReconnect(t.Context(), &row.seen, func() { n++ })
			require.Equal(t, row.want, n)
		})
	}
}
