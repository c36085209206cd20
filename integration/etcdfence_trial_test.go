package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

// fenceWrites is how many writes a random test attempts, and a context with time for them. LEASEFENCE_FENCE_WRITES
// makes it longer.
func fenceWrites(t *testing.T) (int64, context.Context) {
	t.Helper()
	n, err := strconv.ParseInt(os.Getenv("LEASEFENCE_FENCE_WRITES"), 10, 64)
	if err != nil {
		n = 3000
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience+time.Duration(n)*20*time.Millisecond)
	t.Cleanup(cancel)
	return n, ctx
}

// fenceTrial is what random writers attempted, and what the server has of it. All write one key, "data", to "token
// serial".
type fenceTrial struct {
	srv      *etcdtest.Server
	attempts atomic.Int64
	tokens   atomic.Int64 // of a lock elsewhere

	mu       sync.Mutex       // guards the fields below
	accepted map[string]int64 // by value: the revision that was answered
	unknown  map[string]bool
	refused  map[string]bool
}

func newFenceTrial(t *testing.T) *fenceTrial {
	t.Helper()
	return &fenceTrial{
		srv:      etcdtest.Start(t, etcdtest.Options{}),
		accepted: map[string]int64{}, unknown: map[string]bool{}, refused: map[string]bool{},
	}
}

// write attempts one write.
func (f *fenceTrial) write(ctx context.Context, t *testing.T, token fence.Token, kv clientv3.KV) error {
	t.Helper()
	value := fmt.Sprintf("%d %d", int64(token), f.attempts.Add(1))
	resp, err := kv.Put(fence.NewContext(ctx, token), "data", value)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.accepted[value] = resp.Header.Revision
	case errors.Is(err, fence.ErrStale):
		f.refused[value] = true
		stale, _ := errors.AsType[*fence.StaleError](err)
		assert.Equal(t, token, stale.Token)
		assert.True(t, stale.Highest == 0 || stale.Highest > token, "%v", err)
	default:
		f.unknown[value] = true
	}
	return err
}

// history is every event of the server so far, by revision.
func (f *fenceTrial) history(t *testing.T) [][]*clientv3.Event {
	t.Helper()
	last := f.srv.Revision(t)
	history := make([][]*clientv3.Event, last+1)
	watch := f.srv.Client(t).Watch(bounded(t), "", clientv3.WithPrefix(), clientv3.WithRev(1))
	// The last revision is one that the watch is sure to tell.
	require.NoError(t, second2(f.srv.Client(t).Put(bounded(t), "end", "")))
	for resp := range watch {
		require.NoError(t, resp.Err())
		for _, ev := range resp.Events {
			if string(ev.Kv.Key) == "end" {
				return history
			}
			history[ev.Kv.ModRevision] = append(history[ev.Kv.ModRevision], ev)
		}
	}
	require.FailNow(t, "the history has no end")
	return nil
}

// verdict reads the server's history: how many writes are in it, and how many of them after one with a newer token. It
// fails the test for a write that was refused, or accepted and lost, or made up.
func (f *fenceTrial) verdict(t *testing.T, history [][]*clientv3.Event) (written, outOfOrder int) {
	t.Helper()
	var highest fence.Token
	seen := map[string]bool{}
	for rev, events := range history {
		for _, ev := range events {
			if string(ev.Kv.Key) != "data" {
				continue
			}
			value := string(ev.Kv.Value)
			written++
			if token := tokenOf(t, value); token < highest {
				outOfOrder++
			} else {
				highest = token
			}
			require.False(t, seen[value], "%q was written twice", value)
			require.False(t, f.refused[value], "%q was refused and written", value)
			if at, ok := f.accepted[value]; ok {
				require.EqualValues(t, rev, at, "%q was accepted", value)
			} else {
				require.True(t, f.unknown[value], "%q is nobody's", value)
			}
			seen[value] = true
		}
	}
	for value := range f.accepted {
		require.True(t, seen[value], "%q was accepted and is lost", value)
	}
	return written, outOfOrder
}

func tokenOf(t *testing.T, value string) fence.Token {
	t.Helper()
	text, _, _ := strings.Cut(value, " ")
	token, err := fence.Parse(text)
	require.NoError(t, err)
	return token
}

// fenceWriters is the number of writers of a trial.
const fenceWriters = 16

// race has writers that take turns, each with a token of its own. A turn is some writes at a time, and one or two after
// it has been passed on. Who has waited for too long does not wait for the end of a turn: it has expired.
func (f *fenceTrial) race(
	ctx context.Context, t *testing.T, goOn func() bool, writer func(*clientv3.Client) clientv3.KV,
) {
	t.Helper()
	turn := make(chan struct{}, 1) // has one while nobody takes a turn
	turn <- struct{}{}
	var wg sync.WaitGroup
	for n := range fenceWriters {
		in := faults.NewInterceptor(t)
		client := f.srv.Client(t, etcdtest.Dial(in.DialOptions()...))
		if n%4 == 0 {
			in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Txn, Match: oneIn(50)})
			in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.Txn, Match: oneIn(50)})
		}
		if n%4 == 1 { // now and then a write is under way for as long as a few turns
			in.Inject(t, faults.Rule{
				Fault: faults.DelayRequest, Method: faults.Txn, Match: oneIn(4), Delay: 20 * time.Millisecond,
			})
		}
		kv := writer(client)
		wg.Go(func() {
			for goOn() && ctx.Err() == nil {
				waited := false
				select {
				case <-turn:
					waited = true
				case <-time.After(rand.N(100 * time.Millisecond)):
				}
				token := fence.Token(f.tokens.Add(1))
				f.writes(ctx, t, token, kv, goOn, 1+rand.IntN(10))
				if waited {
					turn <- struct{}{}
				}
				f.writes(ctx, t, token, kv, goOn, 1)
			}
		})
	}
	wg.Wait()
	require.NoError(t, context.Cause(ctx))
}

// writes attempts n times two writes at a time, unless the first is refused.
func (f *fenceTrial) writes(
	ctx context.Context, t *testing.T, token fence.Token, kv clientv3.KV, goOn func() bool, n int,
) {
	t.Helper()
	for range n {
		if !goOn() {
			return
		}
		var beside sync.WaitGroup
		beside.Go(func() { _ = f.write(ctx, t, token, kv) })
		err := f.write(ctx, t, token, kv)
		beside.Wait()
		if errors.Is(err, fence.ErrStale) {
			return
		}
	}
}

func oneIn(n int) func(any) bool { return func(any) bool { return rand.IntN(n) == 0 } }
