package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// script is a source of random numbers that reads them from data, two bytes each, and continues with rest after the
// end.
type script struct {
	data []byte
	rest *rand.PCG
}

func (s *script) Uint64() uint64 {
	if len(s.data) < 2 {
		s.data = nil
		return s.rest.Uint64()
	}
	v := uint64(s.data[0])<<8 | uint64(s.data[1])
	s.data = s.data[2:]
	return v * 0x0001_0001_0001_0001 // math/rand takes some numbers from the low bits, others from the high ones
}

// Readers, writers and candidates of two processes come, wait, try, leave, give up and are passed over. An operator
// deletes, writes and displaces their keys, and there are keys that are no contenders. In every second script watches
// break, hang, come late, lag and are compacted, and requests and answers are lost. Nobody is granted while an older
// contender excludes it. Everybody is once none does: at once, or when the faults are over. Who only tries gets in if
// nobody excludes it. The guards report what the operator does, and nothing else.
func FuzzQueue_Await(f *testing.F) {
	f.Add([]byte{})
	seeds := uint64(400)
	if fakeetcd.RaceDetector {
		seeds = 100
	}
	for seed := range seeds { // scripts that take all of the steps
		r := rand.New(rand.NewPCG(seed, 7))
		data := make([]byte, 600+150*(seed%8))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2048 || f.Failed() { // one failure is enough
			return
		}
		bubble(t, func(t *testing.T, e *env) {
			s := &script{data: data, rest: rand.NewPCG(1, 2)}
			q := &ranks{t: t, r: rand.New(s), lag: &behind{Watcher: e.c.Watcher}}
			e.c.Watcher = q.lag
			for _, e := range []*env{e, e.another(t)} {
				guards := &queue.Guards{Queue: e.Queue, Spawn: e.spawn, Every: every, Warn: func(error) {}}
				q.members = append(q.members, &member{e, guards})
			}
			q.faulty = q.r.IntN(4) == 0
			q.quiet, q.brisk = !q.faulty && q.r.IntN(3) == 0, q.r.IntN(4) > 0
			q.rounds, q.most = q.r.IntN(3) > 0, 2+q.r.IntN(6)
			q.who, q.readers, q.own = q.mask(2), q.mask(q.r.IntN(3)), q.mask(q.r.IntN(5))
			for len(s.data) > 0 {
				q.step()
				synctest.Wait()
				q.check(!q.faulty && !time.Now().Before(q.prompt))
			}
			q.finish()
		})
	})
}

// behind is a watcher on a member that lags: its watches begin at a past revision, unless that is 0.
type behind struct {
	clientv3.Watcher

	rev atomic.Int64
}

func (b *behind) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return b.Watcher.Watch(ctx, key, append(opts, clientv3.WithRev(b.rev.Load()))...)
}

// ranks is the model of a queue.
type ranks struct {
	t        *testing.T
	r        *rand.Rand
	members  []*member // faults hit the first
	lag      *behind   // of the first
	faulty   bool
	quiet    bool        // the operator does nothing
	brisk    bool        // nobody waits for long
	rounds   bool        // all come, and then all leave, in the same roles each time; so watches are kept
	filling  bool        // a round begins
	most     int         // the most contenders at a time
	who      int         // the members of the contenders, by their places
	readers  int         // those that are readers
	own      int         // those that are candidates, if they are not readers
	prompt   time.Time   // from then on all waiters know what has happened, without faults
	standing []*standing // in the order of the queue
	gone     []*standing // whose keys the operator has deleted
	planted  []string
}

type member struct {
	*env

	guards *queue.Guards
}

// standing is a contender and the state of its wait.
type standing struct {
	place

	m       *member
	own     bool // it may be passed over
	cancel  context.CancelFunc
	got     <-chan outcome[struct{}]
	in      bool
	off     bool // its key was taken off its lease
	written bool // its key was written after its creation

	guarded queue.Guarded
	ends    [queue.Unwanted + 1]atomic.Bool // what the guard has reported
	touched atomic.Bool
}

// mask sets each bit with a probability of so many quarters.
func (q *ranks) mask(quarters int) (bits int) {
	for i := range 8 {
		if q.r.IntN(4) < quarters {
			bits |= 1 << i
		}
	}
	return bits
}

func (q *ranks) upTo(d time.Duration) time.Duration { return time.Duration(q.r.Int64N(int64(d))) }

func (q *ranks) step() {
	if q.faulty && q.r.IntN(3) > 0 { // otherwise two things happen at the same instant
		time.Sleep(q.upTo(300 * time.Millisecond))
	}
	at := q.r.IntN(8)
	if q.rounds {
		at = len(q.standing)
	}
	switch len(q.standing) {
	case 0:
		q.filling = true
	case q.most:
		q.filling = false
	}
	m := q.members[q.who>>at&1]
	newEntry := queue.NewEntry
	if q.readers>>at&1 == 1 {
		newEntry = queue.NewReader
	}
	switch n := q.r.IntN(40); {
	case n < 22 && q.rounds && q.filling, n < 12 && !q.rounds && len(q.standing) < q.most:
		q.enter(m, q.entry(m, newEntry), q.own>>at&1 == 1)
	case n < 16 && q.rounds:
		q.leave(q.standing[0])
	case n < 22 && len(q.standing) > 0: // an owner leaves, or a waiter gives up
		q.leave(q.anybody())
	case n < 24:
		q.try(m, q.entry(m, newEntry))
	case n < 28:
		q.handOver()
	case n < 35 && !q.quiet && len(q.standing) > 0:
		q.operate(q.anybody())
	case n < 36 && !q.quiet:
		q.plant(m)
	case q.faulty:
		q.disturb()
	case q.brisk:
		time.Sleep(time.Millisecond)
	default: // kept watches may end
		time.Sleep(q.upTo(400 * time.Millisecond))
	}
}

func (q *ranks) anybody() *standing { return q.standing[q.r.IntN(len(q.standing))] }

// do repeats a request after faults.
func (q *ranks) do(m *member, do func(a *etcd.Attempt) error) {
	q.t.Helper()
	require.NoError(q.t, m.Conn.Do(q.t.Context(), m.Bound, do))
}

func (q *ranks) entry(m *member, newEntry func(string, clientv3.LeaseID, string) queue.Entry) queue.Entry {
	for suffix := 0; ; suffix++ { // keys are used again when they are free
		entry := newEntry("a", m.lease, fmt.Sprint(suffix))
		if !slices.ContainsFunc(q.standing, func(s *standing) bool { return s.Key == entry.Key }) {
			return entry
		}
	}
}

func (q *ranks) enter(m *member, e queue.Entry, own bool) {
	s := &standing{m: m, place: place{Entry: e}, own: own && !e.Shared}
	q.do(m, func(a *etcd.Attempt) (err error) {
		s.Entry, s.ahead, err = m.Enter(a, s.Entry, "x")
		return err
	})
	q.stand(s)
	if q.r.IntN(8) == 0 { // its answer was lost
		s.ahead = queue.Ahead{}
	}
	if older := len(q.standing) - 1; older > 0 && q.r.IntN(4) == 0 { // before it waits
		q.leave(q.standing[q.r.IntN(older)])
	}
	ctx, cancel := context.WithCancel(q.t.Context())
	s.cancel = cancel
	if s.own {
		s.got = m.awaitOwn(ctx, s.place)
	} else {
		s.got = m.await(ctx, s.place)
	}
}

// stand adds a contender that has entered to the queue, and guards it.
func (q *ranks) stand(s *standing) {
	for _, older := range q.standing {
		require.Greater(q.t, s.Rev, older.Rev)
	}
	q.standing = append(q.standing, s)
	s.guarded.Entry = s.Entry
	s.guarded.Ended = func(end queue.End) { s.ends[end].Store(true) }
	s.guarded.Touched = func(int64) { s.touched.Store(true) }
	s.m.guards.Add(&s.guarded)
}

// remove takes a contender out of the queue.
func (q *ranks) remove(s *standing) {
	q.standing = slices.DeleteFunc(q.standing, func(other *standing) bool { return other == s })
}

func (q *ranks) leave(s *standing) {
	q.remove(s)
	s.m.guards.Remove(&s.guarded)
	if s.cancel != nil {
		s.cancel()
		if !s.in {
			at := s.m.now()
			require.LessOrEqual(q.t, receive(q.t, s.got).at, at, "it gives up at once")
		}
	}
	q.do(s.m, func(a *etcd.Attempt) error {
		_, err := s.m.Leave(a, s.Entry) // if the answer is lost, it has left before
		return err
	})
}

func (q *ranks) try(m *member, e queue.Entry) {
	s := &standing{m: m, in: true, place: place{Entry: e}}
	excluding := q.excluding(s.Entry, len(q.standing))
	q.do(m, func(a *etcd.Attempt) (err error) {
		entered, owner, err := m.TryEnter(a, s.Entry, "x")
		if s.Entry = entered; err != nil {
			return err
		}
		if excluding != nil {
			require.NotNil(q.t, owner)
			require.Equal(q.t, excluding.Key, string(owner.Key), "the oldest one")
		} else {
			require.Nil(q.t, owner)
		}
		return nil
	})
	if excluding == nil {
		q.stand(s)
	}
}

// excluding returns the oldest of the first n contenders that exclude e, nil if there is none.
func (q *ranks) excluding(e queue.Entry, n int) *standing {
	for _, s := range q.standing[:n] {
		if !s.off && (!s.Shared || !e.Shared) {
			return s
		}
	}
	return nil
}

// handOver ends the owner's hold as a leader does that hands over: with its own key it deletes those of candidates behind
// it, and has written its own key before.
func (q *ranks) handOver() {
	i := slices.IndexFunc(q.standing, func(s *standing) bool { return !s.off })
	if i < 0 || !q.standing[i].in || q.standing[i].Shared {
		return
	}
	owner, end := q.standing[i], i+1
	for end < len(q.standing) && q.standing[end].own && !q.standing[end].in && !q.standing[end].off && q.r.IntN(4) > 0 {
		end++
	}
	passed := slices.Clone(q.standing[i+1 : end])
	if len(passed) > 0 && !owner.written {
		q.rewrite(owner)
	}
	places := []place{owner.place}
	for _, s := range passed {
		places = append(places, s.place)
		s.m.guards.Remove(&s.guarded)
	}
	owner.m.guards.Remove(&owner.guarded)
	at := owner.m.now()
	q.members[1].leaveTogether(q.t, places...)
	for _, s := range append(passed, owner) {
		q.remove(s)
	}
	for _, s := range passed {
		o := receive(q.t, s.got)
		require.ErrorIs(q.t, o.err, queue.ErrGone, "it was passed over")
		require.True(q.t, q.faulty || o.at == at, "it learns that at once")
	}
}

// rewrite writes a key, which stays as it is.
func (q *ranks) rewrite(s *standing) {
	s.written = true
	q.members[1].rewrite(q.t, s.place)
	if q.r.IntN(2) == 0 {
		synctest.Wait()
	}
}

// operate does something to a key.
func (q *ranks) operate(s *standing) {
	if i := slices.IndexFunc(q.standing, func(s *standing) bool { return s.off }); i >= 0 && q.r.IntN(2) == 0 {
		s = q.standing[i]
	}
	switch n := q.r.IntN(6); {
	case s.off && !q.faulty && n < 4: // put back; with faults, a wait may act upon what it has read before
		_, err := q.members[1].c.Put(q.t.Context(), s.Key, "x", clientv3.WithLease(s.m.lease))
		require.NoError(q.t, err)
		s.off = false
	case n < 3 && !s.off:
		s.m.srv.Put(s.Key, "x")
		s.off, s.written = true, true
		q.prompt = time.Now().Add(queue.GuardAfter) // kept watches do not show it
	case n < 5:
		q.rewrite([]*standing{s, q.standing[0]}[q.r.IntN(2)])
	default:
		require.True(q.t, s.m.srv.Delete(s.Key))
		q.remove(s)
		q.gone = append(q.gone, s)
	}
}

// plant puts or deletes keys that are no contenders.
func (q *ranks) plant(m *member) {
	if q.r.IntN(2) == 0 { // a nested name that sorts before or after the readers, or a stray
		key := []string{"a/jobs/x", "a/reports/x", "a/zzz", "a/0000"}[q.r.IntN(4)]
		if i := slices.Index(q.planted, key); i >= 0 {
			q.planted = slices.Delete(q.planted, i, i+1)
			require.True(q.t, m.srv.Delete(key))
		} else {
			q.planted = append(q.planted, key)
			m.srv.Put(key, "")
		}
		return
	}
	// Keys that look like contenders, and so many of nested names that a page of the queue ends anywhere.
	_, err := q.members[1].c.Put(q.t.Context(), fmt.Sprintf("a/%x-x", 1+q.r.IntN(4096)), "", clientv3.WithLease(m.lease))
	require.NoError(q.t, err)
	m.srv.Put(fmt.Sprintf("a/%x-planted", int64(m.lease)), "")
	for i := range q.r.IntN(30) {
		m.srv.Put(fmt.Sprintf("a/%x/%d", q.r.IntN(4096), i), "")
	}
}

// disturb is a fault of the first member.
func (q *ranks) disturb() {
	e := q.members[0]
	switch q.r.IntN(10) {
	case 0, 1, 2:
		e.c.BreakWatches([]error{fakeetcd.ErrUnavailable, rpctypes.ErrGRPCNoLeader}[q.r.IntN(2)])
	case 3:
		e.Conn.Streams(e.Bound).Suspect()
	case 4:
		e.compact()
	case 5:
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1 + q.r.IntN(3), After: q.upTo(2 * time.Second)})
	case 6:
		e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1 + q.r.IntN(3), Before: q.upTo(time.Second), After: q.upTo(time.Second)})
	case 7, 8:
		lose := []fakeetcd.Message{fakeetcd.Request, fakeetcd.Answer}[q.r.IntN(2)]
		method := []fakeetcd.Method{fakeetcd.Watch, fakeetcd.Txn}[q.r.IntN(2)]
		e.c.Inject(method, fakeetcd.Fault{Times: 1, Lose: lose, Err: fakeetcd.ErrUnavailable, After: q.upTo(time.Second)})
	case 9:
		q.lag.rev.Store(q.r.Int64N(e.srv.Rev()))
	}
}

// compact breaks the client's watches, and compacts the history that it would need to resume them.
func (e *env) compact() {
	e.c.Cut()
	e.c.BreakWatches(fakeetcd.ErrUnavailable)
	e.srv.Put("x", "")
	_ = e.srv.Compact(e.srv.Put("x", "")) // fails only if that revision is already compacted
	e.c.Restore()
}

// check compares the grants with the model; prompt says that each turn that has come is known by now.
func (q *ranks) check(prompt bool) {
	for i, s := range q.standing {
		excluding := q.excluding(s.Entry, i)
		if !s.in {
			select {
			case got := <-s.got:
				require.NoError(q.t, got.err)
				require.Nil(q.t, excluding, "it is granted before its turn")
				s.in = true
			default:
			}
		}
		if prompt && excluding == nil && !s.off {
			require.True(q.t, s.in, "its turn has come: %s of %d", s.Key, len(q.standing))
		}
	}
}

// finish ends the faults, and then the queue.
func (q *ranks) finish() {
	q.members[0].c.Reset()
	q.lag.rev.Store(0)
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	q.check(true)
	for _, s := range slices.Concat(q.gone, q.standing) {
		gone := !slices.Contains(q.standing, s)
		require.Equal(q.t, gone, s.ends[queue.Deleted].Load(), "the guard reports the end of the key")
		require.True(q.t, gone || !s.off || s.ends[queue.Overwritten].Load(), "the guard reports that the key is off its lease")
		written := s.touched.Load() || s.ends[queue.Overwritten].Load()
		require.True(q.t, gone || s.written || !written, "the guard reports no write that was not")
	}
	for len(q.standing) > 0 {
		q.leave(q.standing[0])
		synctest.Wait()
		q.check(true)
	}
	for _, s := range q.gone {
		s.m.guards.Remove(&s.guarded)
		if s.cancel != nil && !s.in {
			if o := receive(q.t, s.got); o.err != nil {
				require.ErrorIs(q.t, o.err, queue.ErrGone)
			}
		}
	}
	if !q.faulty {
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(q.t, q.members[0].srv.Watchers())
	}
}
