package redisfence_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// pair is a primary and its replica.
type pair struct {
	primary, replica *redis.Client
	at, standby      *server
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{at: newServer(t), standby: newServer(t)}
	p.primary, p.replica = p.at.client(t), p.standby.client(t)
	p.link(t)
	return p
}

// link makes the replica follow the primary, and waits until it does.
func (p *pair) link(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, p.replica.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(p.at.port)).Err())
	require.NoError(t, until(ctx, func() error {
		// Not WAIT: on a connection that has written nothing, WAIT counts every replica.
		if info := p.primary.Info(ctx, "replication").Val(); !strings.Contains(info, "state=online") {
			return errors.New("the replica is not online")
		}
		return nil
	}))
}

// cut makes the replica follow a port where no server listens. It keeps its data, as if the network was down.
func (p *pair) cut(t *testing.T) {
	t.Helper()
	port, err := freePort()
	require.NoError(t, err)
	require.NoError(t, p.replica.ReplicaOf(t.Context(), "127.0.0.1", strconv.Itoa(port)).Err())
}

// promote kills the primary and makes the replica the primary.
func (p *pair) promote(t *testing.T) {
	t.Helper()
	require.NoError(t, p.at.cmd.Process.Kill())
	require.NoError(t, p.replica.ReplicaOf(t.Context(), "NO", "ONE").Err())
}

// The documented weakness: a fail-over loses the mark with the write, and a stale holder is accepted.
func TestMarks_failoverLosesTheMark(t *testing.T) {
	p := newPair(t)
	before, after := newFence(t, p.primary), newFence(t, p.replica)
	require.NoError(t, before.Claim(as(t, 41), "orders"))
	require.NoError(t, before.Set(as(t, 41), "orders", "orders", "older"))
	replicas, err := p.primary.Wait(t.Context(), 1, 10*time.Second).Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, replicas)

	p.cut(t)
	require.NoError(t, before.Claim(as(t, 54), "orders"))
	require.NoError(t, before.Set(as(t, 54), "orders", "orders", "newer"))
	requireStale(t, before.Set(as(t, 41), "orders", "orders", "stale"), "orders", 41, 54)
	p.promote(t)

	require.Equal(t, "older", get(t, p.replica, "orders"), "the accepted write is lost")
	require.NoError(t, after.Set(as(t, 41), "orders", "orders", "stale"), "and so is the mark")
	require.Equal(t, "stale", get(t, p.replica, "orders"))

	require.NoError(t, after.Claim(as(t, 54), "orders"))
	requireStale(t, after.Set(as(t, 41), "orders", "orders", "stale"), "orders", 41, 54)
}

func TestMarks_replicaRefuses(t *testing.T) {
	p := newPair(t)
	f := newFence(t, p.replica)
	require.NoError(t, newFence(t, p.primary).Claim(as(t, 54), "orders"))
	_, err := p.primary.Wait(t.Context(), 1, 10*time.Second).Result()
	require.NoError(t, err)
	_, err = f.Do(as(t, 54), "orders", redisfence.Command("GET", "orders"))
	require.ErrorContains(t, err, "READONLY", "it only reads, and the mark need not rise")
	for name, verb := range calls(f) {
		err := verb(as(t, 54), "orders")
		if name == "Check" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "READONLY", name)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
	}
}

// After a planned fail-over that loses nothing, the reader's client is still connected to the former primary, now a
// replica. CheckRead there must fail, since a newer writer has written at the new primary.
func TestMarks_CheckRead_atAReplicaThatHasTheMark(t *testing.T) {
	p := newPair(t)
	primary, demoted := newFence(t, p.primary), newFence(t, p.replica)
	require.NoError(t, primary.Set(as(t, 41), "orders", "orders", "older"))
	require.NoError(t, primary.ClaimRead(reading(as(t, 54)), "orders"))
	replicas, err := p.primary.Wait(t.Context(), 1, 10*time.Second).Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, replicas)
	p.cut(t) // it stays a replica and falls behind

	require.NoError(t, primary.Set(as(t, 60), "orders", "orders", "newer"))
	require.ErrorIs(t, primary.CheckRead(reading(as(t, 54)), "orders"), fence.ErrStale)

	require.Equal(t, "older", get(t, p.replica, "orders"))
	err = demoted.CheckRead(reading(as(t, 54)), "orders")
	require.ErrorContains(t, err, "READONLY", "otherwise a stale read would be accepted")
}
