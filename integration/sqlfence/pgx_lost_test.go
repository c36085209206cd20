package sqlfence_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/pgxfence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// dial makes pgx dial connections whose Write is replaced.
func dial(write func(c *wire, b []byte) (int, error)) func(*pgx.ConnConfig) {
	return func(config *pgx.ConnConfig) {
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &wire{Conn: c, write: write, ended: make(chan struct{})}, err
		}
	}
}

// wire is one connection. Once deaf is set it passes on no answer, and a Read waits until the connection ends or its
// deadline passes.
type wire struct {
	net.Conn
	write  func(c *wire, b []byte) (int, error)
	locked bool // see afterTheLock
	deaf   atomic.Bool
	end    sync.Once
	ended  chan struct{}
}

func (c *wire) Write(b []byte) (int, error) { return c.write(c, b) }

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

// The answer to COMMIT does not come, because the connection or the context ends: Do returns ErrUnknown, and fn does
// not run again, whether COMMIT has arrived or not. If nothing of COMMIT could be sent, the outcome is known.
func TestPgx_answerToCommitIsLost(t *testing.T) {
	at(t, pgxPlaces, func(t *testing.T, r *rig) {
		for _, arrives := range []bool{true, false} {
			for _, canceled := range []bool{true, false} {
				r.reset(t)
				r.losesTheAnswer(t, arrives, canceled)
			}
		}
		r.reset(t)
		f, err := newPGX(r.open(t, dial(func(wire *wire, b []byte) (int, error) {
			if bytes.Contains(b, []byte("commit\x00")) {
				return 0, net.ErrClosed
			}
			return wire.Conn.Write(b)
		})), sqlfence.Options{Isolation: r.level})
		require.NoError(t, err)
		var level string
		require.NoError(t, r.claim(as(t, older), resource))
		err = f.do(as(t, older), resource, false, func(ctx context.Context, tx conn) error {
			require.NoError(t, tx.scan(ctx, "SHOW transaction_isolation", &level))
			return write(ctx, tx, 0, older)
		})
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorContains(t, err, "not committed")
		require.NotErrorIs(t, err, pgxfence.ErrUnknown)
		require.Equal(t, row{}, r.row(t))
		require.Equal(t, strings.ToLower(r.level.String()), level)
	})
}

func (r *rig) losesTheAnswer(t *testing.T, arrives, canceled bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(as(t, older))
	defer cancel()
	var lost atomic.Bool // the next COMMIT
	send := func(wire *wire, b []byte) (int, error) {
		if !bytes.Contains(b, []byte("commit\x00")) || !lost.CompareAndSwap(true, false) {
			return wire.Conn.Write(b)
		}
		wire.deaf.Store(true)
		if arrives {
			_, err := wire.Conn.Write(b)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return r.row(t).n == 1 }, patience, time.Millisecond)
		}
		if canceled {
			cancel()
			return len(b), nil
		}
		return len(b), wire.Close()
	}
	runs := 0
	f, err := newPGX(r.open(t, dial(send)), sqlfence.Options{Isolation: r.level})
	require.NoError(t, err)
	err = f.do(ctx, resource, false, func(ctx context.Context, tx conn) error {
		runs++
		lost.Store(true)
		return write(ctx, tx, 0, older)
	})
	require.ErrorIs(t, err, pgxfence.ErrUnknown)
	if canceled {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Equal(t, 1, runs)
	// The successor's claim waits for a transaction that has not ended.
	require.NoError(t, r.claim(as(t, newer), resource))
	want := row{}
	if arrives {
		want = row{n: 1, last: int64(older)}
	}
	require.Equal(t, want, r.row(t))
}
