package sqlfence_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// segmented sends a reader's guard up to its Bind, calls meet once, and then sends its Execute.
func segmented(c *wire, b []byte, meet *atomic.Pointer[func()]) (int, error) {
	if !bytes.Contains(b, []byte("FOR KEY SHARE")) {
		return c.Conn.Write(b)
	}
	met := meet.Swap(nil)
	if met == nil {
		return c.Conn.Write(b)
	}
	execute := 0
	for b[execute] != 'E' {
		execute += 1 + int(binary.BigEndian.Uint32(b[execute+1:]))
	}
	if n, err := c.Conn.Write(b[:execute]); err != nil {
		return n, err
	}
	(*met)()
	n, err := c.Conn.Write(b[execute:])
	return execute + n, err
}

// segmentedRigs returns r, a rig at read committed, where a writer's check alone raises the mark, and x, a rig at level
// whose guards call meet.
func segmentedRigs(t *testing.T, level sql.IsolationLevel) (r, x *rig, meet *atomic.Pointer[func()]) {
	t.Helper()
	r = newRig(t, place{kind: storetest.PostgreSQL, level: sql.LevelReadCommitted, pgx: true, mode: pgx.QueryExecModeExec})
	x = &rig{place: r.place, store: r.store, db: r.db}
	x.level = level
	meet = new(atomic.Pointer[func()])
	x.pool = x.open(t, dial(func(c *wire, b []byte) (int, error) { return segmented(c, b, meet) }))
	x.adapter = x.with(t, sqlfence.Options{})
	return r, x, meet
}

// A newer reader and then a newer writer come between the snapshot of a reader's guard and its lock. The server grants
// the lock FOR KEY SHARE on the version of the snapshot if the later versions have the same key.
func TestMarks_CheckRead_locksAnOldVersion(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
		for _, how := range []form{do, check, checkShared} {
			t.Run(fmt.Sprintf("%s, %s", level, how), func(t *testing.T) { locksAnOldVersion(t, level, how) })
		}
	}
}

func locksAnOldVersion(t *testing.T, level sql.IsolationLevel, how form) {
	t.Helper()
	r, x, meet := segmentedRigs(t, level)
	require.NoError(t, r.claimRead(asReader(t, older), resource))
	between := func() { r.newerCome(t, func() error { return r.increment(as(t, newer), how, nowhere) }) }
	meet.Store(&between)
	ctx, writer := asReader(t, older), as(t, newer)
	err := x.checked(ctx, nowhere, func(tx conn) error {
		for range 2 {
			n, err := read(ctx, tx)
			require.NoError(t, err)
			require.Zero(t, n, "what a newer writer has written")
			require.NoError(t, r.increment(writer, do, nowhere))
		}
		return nil
	})
	require.Nil(t, meet.Load(), "meet was not called")
	if err == nil && x.snapshots() {
		return // it has read its snapshot
	}
	requireReaderRefused(t, err)
}

// newerCome lets a newer reader and then a newer writer come to a guard that has a snapshot and no lock.
func (r *rig) newerCome(t *testing.T, writer func() error) {
	t.Helper()
	r.awaitSnapshot(t)
	second := asReader(t, older+1)
	require.NoError(t, r.claimRead(second, resource), "a version with the same key")
	written := make(chan error, 1)
	require.NoError(t, r.checked(second, nowhere, func(conn) error {
		go func() { written <- writer() }()
		r.awaitWaiter(t)
		return nil
	}))
	require.NoError(t, <-written)
}

// awaitSnapshot returns when a reader's guard has a snapshot and the server waits for its Execute.
func (r *rig) awaitSnapshot(t *testing.T) {
	t.Helper()
	const query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%FOR KEY SHARE%' " +
		"AND pid <> pg_backend_pid() AND state = 'active' AND wait_event = 'ClientRead' AND backend_xmin IS NOT NULL"
	require.Eventually(t, func() bool {
		var n int
		return r.scan(t.Context(), query, &n) == nil && n > 0
	}, patience, time.Millisecond, "the guard has no snapshot")
}

// raisedTx calls then once, after the first statement that locks for a reader.
type raisedTx struct {
	pgx.Tx

	then func()
}

func (tx *raisedTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	row := tx.Tx.QueryRow(ctx, query, args...)
	then := tx.then
	if !strings.Contains(query, "FOR KEY SHARE") || then == nil {
		return row
	}
	tx.then = nil
	return scanned{row, then}
}

type scanned struct {
	pgx.Row

	then func()
}

func (s scanned) Scan(dest ...any) error {
	defer s.then()
	return s.Row.Scan(dest...)
}

// A guard finds the read mark too low to lock it, and then another holder raises it: the guard that passes has a lock.
func TestMarks_markRaisedBetweenAReadersStatements(t *testing.T) {
	m, err := pgxfence.New(pgxfence.Options{})
	require.NoError(t, err)
	for name, row := range map[string]struct {
		check         func(r *rig, tx pgx.Tx) error
		raised, claim func(r *rig) error
	}{
		"CheckRead": {
			func(_ *rig, tx pgx.Tx) error { return m.CheckRead(asReader(t, older), tx, resource) },
			func(r *rig) error { return r.claimRead(asReader(t, older+1), resource) },
			func(r *rig) error { return r.claim(as(t, newer), resource) },
		},
		"CheckPath": {
			func(r *rig, tx pgx.Tx) error {
				require.NoError(t, r.claim(as(t, older), resource+"/a"))
				return m.CheckPath(as(t, older), tx, resource+"/a")
			},
			func(r *rig) error { return r.claimPath(as(t, older+1), resource+"/b") },
			func(r *rig) error { return r.claimPath(as(t, newer), resource) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, pgxPlace)
			tx, err := r.pool.Begin(t.Context())
			require.NoError(t, err)
			defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // It has ended if the test passes.
			require.NoError(t, row.check(r, &raisedTx{tx, func() { require.NoError(t, row.raised(r)) }}))
			claimed := make(chan error, 1)
			go func() { claimed <- row.claim(r) }()
			r.awaitWaiterOrAnswer(t, claimed)
			require.Empty(t, claimed, "the claim has not waited")
			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, <-claimed)
		})
	}
}
