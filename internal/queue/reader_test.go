package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

func (e *env) read(t *testing.T, suffix string) place {
	t.Helper()
	entered, ahead, err := e.Enter(e.once(t.Context()), queue.NewReader("a", e.lease, suffix), suffix)
	require.NoError(t, err)
	return place{entered, ahead}
}

// Without a writer a reader takes one request, however many readers there are.
func TestQueue_Enter_readersAlone(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var revs []int64
		for i := range 3 {
			before := e.requests()
			p := e.read(t, fmt.Sprint(i))
			require.Equal(t, queue.Ahead{None: true}, p.ahead)
			require.Equal(t, before+1, e.requests())
			revs = append(revs, p.Rev)
		}
		require.True(t, slices.IsSorted(revs))
		again, ahead, err := e.Enter(e.once(t.Context()), queue.NewReader("a", e.lease, "0"), "0")
		require.NoError(t, err)
		require.Equal(t, revs[0], again.Rev, "after a lost answer it is found in its place")
		require.NoError(t, e.Await(t.Context(), again, ahead))
	})
}

// A reader that only tries gets the oldest writer as the owner, and no reader that holds.
func TestQueue_TryEnter_reader(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.read(t, "1")
		writer := e.enter(t, "2")
		for i := range 4 {
			e.enter(t, fmt.Sprint(3+i))
		}
		before := e.keys()
		_, owner, err := e.TryEnter(e.once(t.Context()), queue.NewReader("a", e.lease, "9"), "")
		require.NoError(t, err)
		require.Equal(t, writer.Key, string(owner.Key))
		require.Equal(t, before, e.keys())
	})
}

// A contender is granted at the end of the last older one that excludes it: after W1 R1 and R2 at once, after both of
// them W2, and then R3, which does not pass a waiting writer.
func TestQueue_Await_readersAndWriters(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		writers := e.another(t)
		w1, r1, r2, w2, r3 := writers.enter(t, "1"), e.read(t, "2"), e.read(t, "3"), writers.enter(t, "4"), e.read(t, "5")
		require.Equal(t, queue.Ahead{Key: w1.Key, Rev: w1.Rev, Owner: true}, r2.ahead)
		first, second, writer, third := e.await(t.Context(), r1), e.await(t.Context(), r2), writers.await(t.Context(), w2), e.await(t.Context(), r3)
		e.at(time.Minute)
		requirePending(t, first)
		writers.leave(t, w1)
		for _, reader := range []<-chan outcome[struct{}]{first, second} {
			got := receive(t, reader)
			require.NoError(t, got.err)
			require.Equal(t, time.Minute, got.at)
		}
		e.at(2 * time.Minute)
		before := writers.requests()
		e.leave(t, r1)
		synctest.Wait()
		require.Equal(t, before+2, writers.requests(), "after the end of the last reader but one the writer reads the queue")
		requirePending(t, writer)
		e.leave(t, r2)
		require.NoError(t, receive(t, writer).err)
		e.at(3 * time.Minute)
		requirePending(t, third)
		writers.leave(t, w2)
		require.NoError(t, receive(t, third).err)
	})
}

// steps is the number of steps of the random test for each seed.
const steps = 132

// Whatever readers and writers do, and whatever other keys are below the prefix, a contender is granted when no older
// one excludes it any more, and not before. One that only tries gets in if no contender excludes it.
func TestQueue_readersAndWriters_random(t *testing.T) {
	for range 40 {
		seed := rand.Uint64()
		bubbleOf(t, fmt.Sprint(seed), func(t *testing.T, e *env) {
			q := &ranks{t: t, r: rand.New(rand.NewPCG(seed, 0)), members: []*env{e, e.another(t)}}
			for range steps {
				q.step()
				synctest.Wait()
				q.check()
			}
			for len(q.standing) > 0 {
				q.leave(q.standing[0])
				synctest.Wait()
				q.check()
			}
		})
	}
}

// ranks is the model of a queue.
type ranks struct {
	t        *testing.T
	r        *rand.Rand
	members  []*env
	standing []*standing // in the order of the queue
	planted  []string
}

// standing is a contender and the state of its wait.
type standing struct {
	place

	e      *env
	cancel context.CancelFunc
	got    <-chan outcome[struct{}]
	in     bool
}

func (q *ranks) step() {
	e := q.members[q.r.IntN(len(q.members))]
	switch n := q.r.IntN(22); {
	case n < 8 && len(q.standing) < 8:
		s := &standing{e: e, place: place{Entry: q.entry(e)}}
		var err error
		s.Entry, s.ahead, err = e.Enter(e.once(q.t.Context()), s.Entry, "x")
		require.NoError(q.t, err)
		if q.r.IntN(8) == 0 { // its answer was lost
			s.ahead = queue.Ahead{}
		}
		ctx, cancel := context.WithCancel(q.t.Context())
		s.cancel, s.got = cancel, e.await(ctx, s.place)
		q.standing = append(q.standing, s)
	case n < 14 && len(q.standing) > 0: // an owner leaves, or a waiter gives up
		q.leave(q.standing[q.r.IntN(len(q.standing))])
	case n < 16:
		q.try(e)
	case n < 18: // a nested name that sorts before or after the readers, or a stray
		key := []string{"a/jobs/x", "a/reports/x", "a/zzz", "a/0000"}[q.r.IntN(4)]
		if i := slices.Index(q.planted, key); i >= 0 {
			q.planted = slices.Delete(q.planted, i, i+1)
			require.True(q.t, e.srv.Delete(key))
		} else {
			q.planted = append(q.planted, key)
			e.srv.Put(key, "")
		}
	case n < 20: // keys that look like contenders, and so many of nested names that a page of the queue ends anywhere
		_, err := e.c.Put(q.t.Context(), fmt.Sprintf("a/%x-x", 1+q.r.IntN(4096)), "", clientv3.WithLease(e.lease))
		require.NoError(q.t, err)
		e.srv.Put(fmt.Sprintf("a/%x-planted", int64(e.lease)), "")
		for i := range q.r.IntN(60) {
			e.srv.Put(fmt.Sprintf("a/%x/%d", q.r.IntN(4096), i), "")
		}
	default:
		time.Sleep(time.Duration(q.r.Int64N(int64(400 * time.Millisecond)))) // kept watches may end
	}
}

func (q *ranks) entry(e *env) queue.Entry {
	newEntry := queue.NewEntry
	if q.r.IntN(2) == 0 {
		newEntry = queue.NewReader
	}
	for suffix := 0; ; suffix++ { // keys are used again when they are free
		entry := newEntry("a", e.lease, fmt.Sprint(suffix))
		if !slices.ContainsFunc(q.standing, func(s *standing) bool { return s.Key == entry.Key }) {
			return entry
		}
	}
}

func (q *ranks) try(e *env) {
	entry := q.entry(e)
	var excluding *standing
	for _, s := range q.standing {
		if excluding == nil && excludes(s.Entry, entry) {
			excluding = s
		}
	}
	entered, owner, err := e.TryEnter(e.once(q.t.Context()), entry, "x")
	require.NoError(q.t, err)
	if excluding != nil {
		require.NotNil(q.t, owner)
		require.Equal(q.t, excluding.Key, string(owner.Key), "the oldest one")
		return
	}
	require.Nil(q.t, owner)
	q.standing = append(q.standing, &standing{e: e, place: place{Entry: entered}, in: true})
}

func (q *ranks) leave(s *standing) {
	q.standing = slices.DeleteFunc(q.standing, func(other *standing) bool { return other == s })
	if s.cancel != nil {
		s.cancel()
		synctest.Wait()
	}
	s.e.leave(q.t, s.place)
}

func (q *ranks) check() {
	for i, s := range q.standing {
		older := slices.ContainsFunc(q.standing[:i], func(other *standing) bool { return excludes(other.Entry, s.Entry) })
		if !s.in {
			select {
			case got := <-s.got:
				require.NoError(q.t, got.err)
				s.in = true
			default:
			}
		}
		require.Equal(q.t, !older, s.in, "%s of %d", s.Key, len(q.standing))
	}
}

func excludes(one, other queue.Entry) bool { return !one.Shared || !other.Shared }
