package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The trail reads rows as the databases write them.
func TestTrail_reads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trail")
	at := time.Date(2026, 11, 23, 17, 7, 33, 5e6, time.UTC).UnixMilli()
	for name, text := range map[string]string{
		"PostgreSQL": `{"key":"a","token":7,"holder":"h","ttl_ms":1,"granted_at":"2026-11-23T18:07:33.005+01:00","released_at":null,"release_cause":null}`,
		"MySQL":      `{"key":"a","token":7,"holder":"h","ttl_ms":1,"granted_at":"2026-11-23 17:07:33.005000"}`,
		"SQLite":     `[{"key":"a","token":7,"holder":"h","ttl_ms":1,"granted_at":"2026-11-23 17:07:33.005"}]`,
		"an era":     `{"key":"a","token":"281474976710663","holder":"h","granted_at":"2026-11-23T17:07:33.005Z"}`,
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			l, err := newTrail(file)
			require.NoError(t, err)
			require.Equal(t, []trailEntry{{Resource: "a", Token: "7", Holder: "h", Begin: at, rev: 7}}, l.of("a", nil).Rows)
			require.Len(t, l.of("b", map[int64]bool{7: true}).Rows, 1)
			require.Empty(t, l.of("b", map[int64]bool{8: true}).Rows)
		})
	}
	t.Run("many", func(t *testing.T) {
		var text []byte
		for n := range mostShown + 1 {
			row := fmt.Sprintf(`"key":"a","token":%d,"granted_at":"2026-11-23 17:07:33"`, n+1)
			text = fmt.Appendf(text, `{%s} {%s,"refused_at":"2026-11-23 17:07:33","highest":%d}`, row, row, n+2)
		}
		require.NoError(t, os.WriteFile(file, text, 0o600))
		l, err := newTrail(file)
		require.NoError(t, err)
		shown := l.of("a", nil).Rows
		require.Len(t, shown, 2*mostShown)
		require.Equal(t, []string{"201", "2"}, []string{shown[0].Token, shown[len(shown)-1].Token}, "the oldest are left out")
	})
	t.Run("too long", func(t *testing.T) {
		require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
		require.NoError(t, os.Truncate(file, mostTrail+1))
		_, err := newTrail(file)
		require.ErrorContains(t, err, file+" has 67108865 bytes, want 67108864 at most")
	})
	for name, text := range map[string]string{
		"no JSON": `{"key":"a"} x`, "no token": `{"key":"a","granted_at":"2026-11-23 17:07:33"}`, "no time": `{"key":"a","token":7}`,
		"no mark": `{"key":"a","token":7,"refused_at":"2026-11-23 17:07:33"}`,
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			_, err := newTrail(file)
			require.ErrorContains(t, err, "value ")
		})
	}
}

// A pipe, as a shell's <(psql ...), is read once: it is empty afterwards.
func TestTrail_readsAPipeOnce(t *testing.T) {
	from, to, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = from.Close() }()
	_, err = to.WriteString(`{"key":"a","token":7,"granted_at":"2026-11-23 17:07:33"}`)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	l, err := newTrail(fmt.Sprintf("/dev/fd/%d", from.Fd()))
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		l.follow(ctx)
		require.NoError(t, ctx.Err(), "it waits for changes")
		require.Len(t, l.of("a", nil).Rows, 1)
	})
}
