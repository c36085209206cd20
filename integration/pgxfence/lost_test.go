package pgxfence_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// line is what connections go through, and where a test meets a COMMIT.
type line struct {
	onCommit atomic.Pointer[func(c *wire, b []byte) (int, error)]
}

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: c, line: l, ended: make(chan struct{})}, nil
}

// wire is one connection. Once it is deaf it passes on no answer, and a Read waits for its end or its deadline.
type wire struct {
	net.Conn
	line  *line
	deaf  atomic.Bool
	end   sync.Once
	ended chan struct{}
}

func (c *wire) Write(b []byte) (int, error) {
	if meet := c.line.onCommit.Load(); meet != nil && bytes.Contains(b, []byte("commit\x00")) {
		c.deaf.Store(true)
		return (*meet)(c, b)
	}
	return c.Conn.Write(b)
}

func (c *wire) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf.Load() {
		<-c.ended
		return 0, os.ErrDeadlineExceeded
	}
	return n, err
}

func (c *wire) SetDeadline(t time.Time) error {
	if !t.IsZero() && t.Before(time.Now()) {
		c.end.Do(func() { close(c.ended) })
	}
	return c.Conn.SetDeadline(t)
}

func (c *wire) Close() error {
	c.end.Do(func() { close(c.ended) })
	return c.Conn.Close()
}

// The answer to COMMIT does not come: nobody knows, and fn does not run again. It is committed or it is not.
func TestDo_answerToCommitIsLost(t *testing.T) {
	for _, c := range []struct {
		name              string
		arrives, canceled bool
	}{
		{"COMMIT is lost on its way", false, false},
		{"the answer is lost on its way", true, false},
		{"the context ends, COMMIT does not arrive", false, true},
		{"the context ends before the answer", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, r *rig) {
				t.Helper()
				ctx, cancel := context.WithCancel(as(t, older))
				defer cancel()
				var l line
				met := func(wire *wire, b []byte) (int, error) {
					l.onCommit.Store(nil)
					if c.arrives {
						_, err := wire.Conn.Write(b)
						require.NoError(t, err)
						r.awaitWrites(t, 1)
					}
					if c.canceled {
						cancel()
						return len(b), nil
					}
					return len(b), wire.Close()
				}
				runs := 0
				err := r.f.Do(ctx, r.open(t, l.dial), resource, func(ctx context.Context, tx pgx.Tx) error {
					runs++
					l.onCommit.Store(&met)
					return write(ctx, tx, 0, older)
				})
				require.ErrorIs(t, err, pgxfence.ErrUnknown)
				require.ErrorIs(t, err, sqlfence.ErrUnknown)
				if c.canceled {
					require.ErrorIs(t, err, context.Canceled)
				}
				require.Equal(t, 1, runs)
				// The successor's claim waits for a transaction that has not ended.
				require.NoError(t, r.f.Claim(as(t, newer), r.pool, resource))
				want := row{}
				if c.arrives {
					want = row{n: 1, last: int64(older)}
				}
				require.Equal(t, want, r.row(t))
			})
		})
	}
}

// awaitWrites returns when n writes are committed.
func (r *rig) awaitWrites(t *testing.T, n int64) {
	t.Helper()
	require.Eventually(t, func() bool { return r.row(t).n == n }, patience, time.Millisecond)
}

// The server ends the connection in the middle of COMMIT, and rolls back, which the client cannot know.
func TestDo_serverEndsInCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		r.atCommit(t, "PERFORM pg_terminate_backend(pg_backend_pid())")
		runs := 0
		err := r.f.Do(as(t, older), r.pool, resource, func(ctx context.Context, tx pgx.Tx) error {
			runs++
			return write(ctx, tx, 0, older)
		})
		require.ErrorIs(t, err, pgxfence.ErrUnknown)
		require.Equal(t, 1, runs)
		require.Zero(t, r.row(t).n)
	})
}

// The server refuses the COMMIT: that is known, and nothing is written.
func TestDo_serverRefusesTheCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		r.atCommit(t, "RAISE EXCEPTION 'not today'")
		err := r.increment(as(t, older), do, nowhere)
		require.ErrorContains(t, err, "not today")
		require.ErrorContains(t, err, "not committed")
		require.NotErrorIs(t, err, pgxfence.ErrUnknown)
		require.Zero(t, r.row(t).n)
	})
}

// atCommit makes a transaction that has written data do something at its end.
func (r *rig) atCommit(t *testing.T, what string) {
	t.Helper()
	r.exec(t, "CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "+what+"; RETURN NULL; END $$")
	r.exec(t, "CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON data "+
		"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit()")
}

// The connection has gone before COMMIT was sent, and fn has not noticed: nothing can be committed.
func TestDo_connectionLostBeforeCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		runs := 0
		err := r.f.Do(as(t, older), r.pool, resource, func(ctx context.Context, tx pgx.Tx) error {
			runs++
			require.NoError(t, write(ctx, tx, 0, older))
			return tx.Conn().Close(ctx)
		})
		require.ErrorContains(t, err, "not committed")
		require.NotErrorIs(t, err, pgxfence.ErrUnknown)
		require.Equal(t, 1, runs)
		require.NoError(t, r.f.Claim(as(t, newer), r.pool, resource))
		require.Zero(t, r.row(t).n)
	})
}
