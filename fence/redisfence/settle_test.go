package redisfence_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/redisfence"
)

// slow is a network that keeps what is written, when told to, and delivers it later, though the client has hung up.
type slow struct {
	mu      sync.Mutex
	hold    bool
	deliver []func()
}

type slowConn struct {
	net.Conn
	s    *slow
	held bool // guarded by s.mu
}

func (c *slowConn) Write(p []byte) (int, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.s.hold {
		return c.Conn.Write(p)
	}
	c.held = true
	text := append([]byte(nil), p...)
	c.s.deliver = append(c.s.deliver, func() {
		_ = c.SetDeadline(time.Now().Add(time.Minute)) // the client's has passed
		_, _ = c.Conn.Write(text)
		_, _ = c.Read(make([]byte, 1000)) // the answer: it has been carried out or refused
		_ = c.Conn.Close()
	})
	return len(p), nil
}

func (c *slowConn) Close() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.held {
		return nil
	}
	return c.Conn.Close()
}

// A payment without an answer is still under way when its holder looks for it, does not find it and pays again. Under the
// same token it would be done twice; under a new one, claimed before it looked, the late one is refused.
func TestClaim_settlesWhatIsUnknown(t *testing.T) {
	for _, renewed := range []bool{false, true} {
		s := new(slow)
		plain := newClient(t)
		c := redis.NewClient(&redis.Options{
			Addr: plain.Options().Addr, MaxRetries: -1, ReadTimeout: 100 * time.Millisecond,
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return &slowConn{Conn: conn, s: s}, err
			},
		})
		t.Cleanup(func() { _ = c.Close() })
		f, f2 := newFence(t, c), newFence(t, plain)
		pay := redisfence.Command("DECRBY", "balance", 30)
		_, err := f.Do(as(t, 54), "orders", redisfence.Command("SET", "balance", 100))
		require.NoError(t, err)
		s.hold = true
		_, err = f.Do(as(t, 54), "orders", pay)
		require.ErrorIs(t, err, redisfence.ErrUnknown)

		ctx := as(t, 54)
		if renewed {
			ctx = as(t, 55)
			require.NoError(t, f2.Claim(ctx, "orders"))
		}
		require.Equal(t, "100", get(t, plain, "balance"), "it is not there")
		_, err = f2.Do(ctx, "orders", pay)
		require.NoError(t, err)
		s.mu.Lock()
		s.hold = false
		for _, deliver := range s.deliver {
			deliver()
		}
		s.mu.Unlock()
		want := map[bool]string{false: "40", true: "70"}[renewed]
		require.Equal(t, want, get(t, plain, "balance"), "a new token: %t", renewed)
	}
}
