package sqlfence_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// wire is a connection whose Write is replaced.
type wire struct {
	net.Conn
	write  func(c *wire, b []byte) (int, error)
	locked bool // see afterTheLock
}

func (c *wire) Write(b []byte) (int, error) { return c.write(c, b) }

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

// meetingRigs returns r, a rig at read committed, where a writer's check alone raises the mark, and x, a rig at level
// whose guards call meet. write sends what x writes.
func meetingRigs(t *testing.T, level sql.IsolationLevel,
	write func(c *wire, b []byte, meet *atomic.Pointer[func()]) (int, error),
) (r, x *rig, meet *atomic.Pointer[func()]) {
	t.Helper()
	r = newRig(t, place{dialect: sqlfence.PostgreSQL, level: sql.LevelReadCommitted, pgx: true, mode: pgx.QueryExecModeExec})
	x = &rig{place: r.place, store: r.store, db: r.db}
	x.level = level
	meet = new(atomic.Pointer[func()])
	x.pool = x.open(t, func(config *pgx.ConnConfig) {
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &wire{Conn: c, write: func(c *wire, b []byte) (int, error) { return write(c, b, meet) }}, err
		}
	})
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
	r, x, meet := meetingRigs(t, level, segmented)
	require.NoError(t, r.claimRead(asReader(t, older), resource))
	between := func() { r.newerCome(t, func() error { return r.increment(as(t, newer), how) }) }
	meet.Store(&between)
	ctx, writer := asReader(t, older), as(t, newer)
	err := x.run(ctx, resource, checkRead, func(_ context.Context, tx conn) error {
		for range 2 {
			n, err := read(ctx, tx)
			require.NoError(t, err)
			require.Zero(t, n, "what a newer writer has written")
			require.NoError(t, r.increment(writer, do))
		}
		return nil
	})
	require.Nil(t, meet.Load(), "meet was not called")
	if err == nil && x.snapshots() {
		return // it has read its snapshot
	}
	requireOutcome(t, staleReader(), err, checkRead)
}

// newerCome lets a newer reader and then a newer writer come to a guard that has a snapshot and no lock.
func (r *rig) newerCome(t *testing.T, writer func() error) {
	t.Helper()
	r.awaitSnapshot(t)
	second := asReader(t, older+1)
	require.NoError(t, r.claimRead(second, resource), "a version with the same key")
	written := make(chan error, 1)
	require.NoError(t, r.run(second, resource, checkRead, func(context.Context, conn) error {
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

// afterTheLock calls meet once, before the statement that follows a reader's guard.
func afterTheLock(c *wire, b []byte, meet *atomic.Pointer[func()]) (int, error) {
	locks := bytes.Contains(b, []byte("FOR KEY SHARE"))
	if c.locked && !locks {
		if met := meet.Swap(nil); met != nil {
			(*met)()
		}
	}
	c.locked = locks
	return c.Conn.Write(b)
}

// A guard finds the read mark too low to lock it, and then another holder raises it: the guard that passes has a lock.
func TestMarks_markRaisedBetweenAReadersStatements(t *testing.T) {
	for _, how := range []form{checkRead, checkPath} {
		t.Run(string(how), func(t *testing.T) {
			r, x, meet := meetingRigs(t, sql.LevelReadCommitted, afterTheLock)
			ctx, node := asReader(t, older), resource
			raise := func() { require.NoError(t, r.claimRead(asReader(t, older+1), resource)) }
			if how == checkPath {
				ctx, node = as(t, older), resource+"/a"
				require.NoError(t, r.claim(ctx, node))
				raise = func() { require.NoError(t, r.claimPath(as(t, older+1), resource+"/b")) }
			}
			meet.Store(&raise)
			var claimed chan error
			waits := false
			require.NoError(t, x.run(ctx, node, how, func(context.Context, conn) error {
				claimed, waits = r.launch(func() error { return r.claimPath(as(t, newer), resource) }) // of one node, it equals Claim
				return nil
			}))
			require.NoError(t, <-claimed)
			require.True(t, waits, "the guard has no lock")
			require.Nil(t, meet.Load(), "meet was not called")
		})
	}
}

// A newer holder of the node above comes between the snapshot of the path's first guard and its lock. The server grants
// the lock on an old version of the marks, see TestMarks_CheckRead_locksAnOldVersion.
func TestMarks_CheckPath_locksAnOldVersion(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			r, x, meet := meetingRigs(t, level, segmented)
			path := resource + "/b"
			require.NoError(t, r.claimPath(as(t, older), path))
			// The newer writer claims and has not written yet: its write would be a conflict by itself.
			between := func() {
				r.newerCome(t, func() error { return r.run(as(t, newer), resource, check, nothing) })
			}
			meet.Store(&between)
			_, err := x.incrementOn(as(t, older), path, checkPath)
			require.Nil(t, meet.Load(), "meet was not called")
			require.Error(t, err, "a stale write")
			require.True(t, transient(err) || errors.Is(err, fence.ErrStale), "%v", err)
			require.Zero(t, r.row(t).n)
		})
	}
}
