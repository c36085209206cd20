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

	"github.com/leasefence/leasefence/fence/redisfence"
)

// pair is a primary and its replica.
type pair struct{ primary, replica *redis.Client }

// newPair returns when the replica follows the primary.
func newPair(t *testing.T) *pair {
	t.Helper()
	at := newServer(t)
	p := &pair{at.client(t), newServer(t).client(t)}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, p.replica.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(at.port)).Err())
	require.NoError(t, until(ctx, func() error {
		// Not WAIT: on a connection that has written nothing, WAIT counts every replica.
		if info := p.primary.Info(ctx, "replication").Val(); !strings.Contains(info, "state=online") {
			return errors.New("the replica is not online")
		}
		return nil
	}))
	return p
}

// A replica refuses every verb that could raise a mark, also if the mark need not rise. Otherwise a former primary that
// is a replica now would accept a reader although it does not know of a newer writer.
func TestMarks_replicaRefuses(t *testing.T) {
	p := newPair(t)
	f := newFence(t, p.replica)
	require.NoError(t, newFence(t, p.primary).Claim(of(t, "accounts", 54), "orders"))
	_, err := p.primary.Wait(t.Context(), 1, 10*time.Second).Result()
	require.NoError(t, err)
	_, err = f.Do(of(t, "accounts", 54), "orders", redisfence.Command("GET", "orders"))
	require.ErrorContains(t, err, "READONLY", "it only reads, and the mark need not rise")
	for name, v := range verbs(f) {
		err := call(t, v, 54, "orders")
		if name == "Check" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "READONLY", name)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
	}
}
