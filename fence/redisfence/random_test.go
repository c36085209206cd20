package redisfence_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/redisfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// Holders of one lock overlap in all verbs. Scripts arrive late, also after their calls have been cancelled at random.
func TestMarks_random(t *testing.T) {
	c, late := newClient(t), shared.client(t)
	var under sync.WaitGroup
	t.Cleanup(under.Wait)
	late.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if !strings.HasPrefix(cmd.Name(), "eval") { // the connection's own
			return next(ctx, cmd)
		}
		sent, done := redis.NewCmd(ctx, cmd.Args()...), make(chan error, 1)
		under.Go(func() {
			if rand.IntN(4) == 0 {
				time.Sleep(rand.N(5 * time.Millisecond)) // for varied schedules; nothing relies on its length
			}
			done <- next(context.WithoutCancel(ctx), sent)
		})
		select {
		case err := <-done:
			cmd.(interface{ SetVal(any) }).SetVal(sent.Val())
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	f, direct := newFence(t, late), newFence(t, c)
	s := fencetest.Store{
		Claims: []func(context.Context, string) error{f.Claim},
		Again:  func(error) bool { return false },
		Entries: func(ctx context.Context, resource string) ([]fencetest.Entry, error) {
			replies, err := direct.Do(ctx, resource, redisfence.Command("KEYS", "{"+resource+"}:*"))
			if err != nil {
				return nil, err
			}
			return entries(t, replies[0].([]any)), nil
		},
	}
	body := redisfence.NewScript("local seen = redis.call('KEYS', KEYS[1]) redis.call('SET', KEYS[2], '') return seen")
	for _, name := range []string{"Do", "Run", "Set"} {
		s.Forms = append(s.Forms, fencetest.Form{
			Name: name, Alone: "the server",
			Write: func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
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
			},
		})
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

func TestMarks_grants(t *testing.T) {
	fencetest.Grants(t, verbs(newFence(t, newClient(t))), "Set", "Do", "Run") // Check raises no mark
}
