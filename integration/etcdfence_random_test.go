package integration_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// TestEtcdfence_marksUnderStress: of thousands of writes by writers whose turns change at any moment, over lines that
// lose and delay messages, none is accepted out of the tokens' order and none that was accepted is lost. The mark is
// the token of the last write, at each revision.
func TestEtcdfence_marksUnderStress(t *testing.T) {
	t.Parallel()
	f := newFenceTrial(t)
	total, ctx := fenceWrites(t)
	f.race(ctx, t, func() bool { return f.attempts.Load() < total },
		func(client *clientv3.Client) clientv3.KV { return markedBy(t, client, "r") })
	history := f.history(t)
	written, outOfOrder := f.verdict(t, history)
	t.Logf("%d attempts: %d accepted, %d refused, %d unknown; %d written, %d out of order",
		f.attempts.Load(), len(f.accepted), len(f.refused), len(f.unknown), written, outOfOrder)
	require.Zero(t, outOfOrder)
	require.NotEmpty(t, f.refused)
	require.NotEmpty(t, f.unknown)

	var mark fence.Token
	for _, events := range history {
		for _, ev := range events {
			if string(ev.Kv.Key) == "fence/r" {
				require.Equal(t, clientv3.EventTypePut, ev.Type)
				n, err := strconv.ParseInt(string(ev.Kv.Value), 10, 64)
				require.NoError(t, err)
				require.Greater(t, fence.Token(n), mark, "a mark only grows")
				mark = fence.Token(n)
			}
		}
		for _, ev := range events {
			if string(ev.Kv.Key) == "data" {
				require.Equal(t, mark, tokenOf(t, string(ev.Kv.Value)), "mark and write are one step")
			}
		}
	}
}

// naiveMark reads the mark, compares, and writes.
type naiveMark struct{ clientv3.KV }

func (k naiveMark) Put(
	ctx context.Context, key, value string, opts ...clientv3.OpOption,
) (*clientv3.PutResponse, error) {
	token, _ := fence.FromContext(ctx)
	mark, err := k.Get(ctx, "mark")
	if err != nil {
		return nil, err
	}
	if len(mark.Kvs) > 0 {
		if highest, err := fence.Parse(string(mark.Kvs[0].Value)); err != nil || token < highest {
			return nil, &fence.StaleError{Resource: "r", Token: token, Highest: highest}
		}
	}
	resp, err := k.Txn(ctx).Then(clientv3.OpPut("mark", token.String()), clientv3.OpPut(key, value, opts...)).Commit()
	if err != nil {
		return nil, err
	}
	return &clientv3.PutResponse{Header: resp.Header}, nil
}

// TestEtcdfence_naiveMarkIsCaught is the control of the test before: the same writers with a mark that is read first
// are found to write out of order.
func TestEtcdfence_naiveMarkIsCaught(t *testing.T) {
	t.Parallel()
	f := newFenceTrial(t)
	total, ctx := int64(1000), bounded(t)
	for {
		f.race(ctx, t, func() bool { return f.attempts.Load() < total },
			func(client *clientv3.Client) clientv3.KV { return naiveMark{client} })
		written, outOfOrder := f.verdict(t, f.history(t))
		t.Logf("%d attempts: %d written, %d of them out of order", f.attempts.Load(), written, outOfOrder)
		if outOfOrder > 0 {
			return
		}
		total += 1000
	}
}

// TestEtcdfence_heldUnderStress: sessions that contend for a lock write while they hold it and after they have lost it,
// while an operator deletes the holder's key at any moment. Each write in the history stands at a revision at which its
// lock's key was there.
func TestEtcdfence_heldUnderStress(t *testing.T) {
	t.Parallel()
	f := newFenceTrial(t)
	total, ctx := fenceWrites(t)
	goOn := func() bool { return f.attempts.Load() < total && ctx.Err() == nil }
	operator := f.srv.Client(t)
	var wg sync.WaitGroup
	for n := range fenceWriters {
		in := faults.NewInterceptor(t)
		client := f.srv.Client(t, etcdtest.Dial(in.DialOptions()...))
		s := newSession(t, f.srv.Client(t), lease.Options{})
		if n%4 == 0 {
			in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Txn, Match: oneIn(50)})
		}
		if n%4 == 1 {
			in.Inject(t, faults.Rule{
				Fault: faults.DelayRequest, Method: faults.Txn, Match: oneIn(8), Delay: 5 * time.Millisecond,
			})
		}
		wg.Go(func() {
			late := func() {} // writes by the tenure before, whose key may be the same
			for goOn() && late != nil {
				late = f.tenure(ctx, t, s, client, operator, goOn, late)
			}
		})
	}
	wg.Wait()
	require.NoError(t, context.Cause(ctx))
	history := f.history(t)
	written, outOfOrder := f.verdict(t, history)
	t.Logf("%d attempts: %d accepted, %d refused, %d unknown; %d written, %d out of order",
		f.attempts.Load(), len(f.accepted), len(f.refused), len(f.unknown), written, outOfOrder)
	require.Zero(t, outOfOrder)
	require.NotEmpty(t, f.refused)

	standing := map[string]fence.Token{} // the lock's keys
	for _, events := range history {
		before := slices.Collect(maps.Values(standing))
		for _, ev := range events {
			switch key := string(ev.Kv.Key); {
			case key == "data":
				require.Contains(t, before, tokenOf(t, string(ev.Kv.Value)), "%q without its lock", ev.Kv.Value)
			case ev.Type == clientv3.EventTypeDelete:
				delete(standing, key)
			default:
				standing[key] = fence.Token(ev.Kv.CreateRevision)
			}
		}
	}
}

// tenure is a turn of a writer with the lock, with what is late of the one before. It returns a write that is late,
// nil if there was no turn.
func (f *fenceTrial) tenure(
	ctx context.Context, t *testing.T, s *lease.Session, client, operator *clientv3.Client,
	goOn func() bool, before func(),
) (after func()) {
	t.Helper()
	l, err := s.Lock(ctx, "n")
	if err != nil {
		assert.NoError(t, err)
		return nil
	}
	kv, err := etcdfence.NewKV(client, l)
	if err != nil {
		assert.NoError(t, err)
		return nil
	}
	var late sync.WaitGroup
	late.Go(before)
	for range 3 {
		late.Go(func() { f.writes(ctx, t, l.Token(), kv, goOn, 1+rand.IntN(10)) })
	}
	if rand.IntN(3) == 0 {
		if _, err := operator.Delete(ctx, l.Key()); err != nil {
			assert.NoError(t, err)
		}
	}
	f.writes(ctx, t, l.Token(), kv, goOn, 1+rand.IntN(10))
	if err := l.Unlock(ctx); err != nil && !errors.Is(err, lease.ErrLost) {
		assert.NoError(t, err)
	}
	late.Wait()
	return func() { _ = f.write(ctx, t, l.Token(), kv) }
}
