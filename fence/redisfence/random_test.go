package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/redisfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// Holders of one lock overlap in all verbs, over connections that deliver late. Their calls are cancelled at random.
func TestMarks_random(t *testing.T) {
	c := newClient(t)
	s := fencetest.Store{Again: func(error) bool { return false }}
	use := func(ctx context.Context, verb func(context.Context, *redisfence.Marks) error) error {
		late := lateClient(ctx, c)
		f, err := redisfence.New(late, redisfence.Options{})
		if err == nil {
			err = verb(ctx, f)
		}
		return errors.Join(err, late.Close())
	}
	body := redisfence.NewScript("local seen = redis.call('KEYS', KEYS[1]) redis.call('SET', KEYS[2], '') return seen")
	for _, name := range []string{"Do", "Run", "Set"} {
		s.Forms = append(s.Forms, fencetest.Form{
			Name: name, Alone: "the server",
			Write: func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
				return use(ctx, func(ctx context.Context, f *redisfence.Marks) error {
					all, key := "{"+resource+"}:*", fmt.Sprintf("{%s}:%v", resource, e)
					var keys any
					var err error
					switch name {
					case "Set":
						return f.Set(ctx, resource, key, "")
					case "Run":
						keys, err = f.Run(ctx, resource, body, []string{all, key})
					case "Do":
						var replies []any
						replies, err = f.Do(ctx, resource, redisfence.Command("KEYS", all), redisfence.Command("SET", key, ""))
						if err == nil {
							keys = replies[0]
						}
					}
					if err == nil {
						saw(entries(t, keys.([]any)))
					}
					return err
				})
			},
		})
	}
	s.Claims = append(s.Claims, func(ctx context.Context, resource string) error {
		return use(ctx, func(ctx context.Context, f *redisfence.Marks) error { return f.Claim(ctx, resource) })
	})
	f := newFence(t, c)
	s.Entries = func(ctx context.Context, resource string) ([]fencetest.Entry, error) {
		replies, err := f.Do(ctx, resource, redisfence.Command("KEYS", "{"+resource+"}:*"))
		if err != nil {
			return nil, err
		}
		return entries(t, replies[0].([]any)), nil
	}
	fencetest.Random(t, s)
}

// entries parses keys of the form "{resource}:entry".
func entries(t *testing.T, keys []any) []fencetest.Entry {
	t.Helper()
	var text strings.Builder
	for _, key := range keys {
		_, entry, _ := strings.Cut(key.(string), ":")
		text.WriteString(" " + entry)
	}
	all, err := fencetest.Entries(text.String())
	require.NoError(t, err)
	return all
}

// lateClient returns another client of c's server, for one call. go-redis interrupts a request only at a deadline, if
// at all; here the end of ctx ends the reads of its connection. What was written before is still delivered, perhaps
// late.
func lateClient(ctx context.Context, c *redis.Client) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: c.Options().Addr,
		Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(context.WithoutCancel(ctx), network, addr)
			if err != nil {
				return nil, err
			}
			late := &lateConn{Conn: conn}
			late.stop = context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
			return late, nil
		},
	})
}

type lateConn struct {
	net.Conn
	stop func() bool
	sent sync.WaitGroup
}

// The client must not replace the deadline that ends a read.
func (c *lateConn) SetDeadline(time.Time) error     { return nil }
func (c *lateConn) SetReadDeadline(time.Time) error { return nil }

func (c *lateConn) Write(p []byte) (int, error) {
	if rand.IntN(4) > 0 {
		return c.Conn.Write(p)
	}
	text := append([]byte(nil), p...)
	c.sent.Go(func() {
		time.Sleep(rand.N(5 * time.Millisecond)) // for varied schedules; nothing relies on its length
		_, _ = c.Conn.Write(text)
	})
	return len(p), nil
}

func (c *lateConn) Close() error {
	c.stop()
	go func() {
		c.sent.Wait()
		_ = c.Conn.Close()
	}()
	return nil
}

func TestMarks_grants(t *testing.T) {
	fencetest.Grants(t, verbs(newFence(t, newClient(t))), "Set", "Do", "Run") // Check raises no mark
}
