package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// watch shows a queue however long it is: it does not need the remaining time of the leases. Lines fit a terminal.
func TestWatch_aLongQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, client := newApp(), longQueue(t)
		a.etcd.commandTimeout = 5 * time.Second
		watched := func() string {
			var out bytes.Buffer
			a.out = &out
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.ErrorIs(t, a.watch(ctx, client.Client, "a"), context.DeadlineExceeded)
			return out.String()
		}
		require.Contains(t, watched(), "  exclusive  1        999 ")
		a.width = 60
		for line := range strings.Lines(watched()) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), a.width+len("\n"))
		}
		a.output = outputJSON
		require.Regexp(t, `^{"time":"[^"]+","name":"a","holders":\[{`, watched())
	})
}
