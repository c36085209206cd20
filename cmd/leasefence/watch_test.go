package main

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// watch shows a queue however long it is: it does not need the remaining time of the leases.
func TestWatch_aLongQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newApp()
		a.out, a.etcd.commandTimeout = &out, 5*time.Second
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, a.watch(ctx, longQueue(t).Client, "a"), context.DeadlineExceeded)
		require.Contains(t, out.String(), "  exclusive  1        999 ")
	})
}
