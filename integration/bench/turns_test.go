package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// token is a lock in memory: the goroutine that has received the value holds the lock.
type token chan struct{}

func newToken() token {
	t := make(token, 1)
	t <- struct{}{}
	return t
}

func (t token) Lock(ctx context.Context) error {
	select {
	case <-t:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t token) Unlock(context.Context) error {
	t <- struct{}{}
	return nil
}

// broken is a lock whose calls fail, as if its session were gone.
type broken struct{}

var errBroken = errors.New("broken")

func (broken) Lock(context.Context) error   { return errBroken }
func (broken) Unlock(context.Context) error { return errBroken }

// Every locker has at least one turn, so that even the slowest disk gives figures.
func TestContend_everybodyHasATurn(t *testing.T) {
	lock := newToken()
	stays, err := contend(t.Context(), []locker{lock, lock, lock}, 0, 0)
	require.NoError(t, err)
	require.Len(t, stays, 3)
	took, err := pairs(t.Context(), []locker{newToken(), newToken()}, 0)
	require.NoError(t, err)
	require.Len(t, took, 2)
}

func TestContend_oneFailureEndsTheOthers(t *testing.T) {
	held := make(token) // Lock never returns
	_, err := contend(t.Context(), []locker{held, broken{}}, 0, time.Hour)
	require.ErrorIs(t, err, errBroken)
}

func TestExclusive_seesAnOverlap(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	require.NoError(t, exclusive([]stay{{0, at(0), at(5)}, {1, at(5), at(9)}}))
	require.ErrorContains(t, exclusive([]stay{{0, at(0), at(5)}, {1, at(4), at(9)}}), "two held the lock at once")
}
