package queue_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

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

// A waiter under a script of contenders that come and go, and of watches that break, hang, come late and are
// compacted: it is not granted while an older contender exists, and it is when none is left.
func FuzzQueue_Await(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(400) { // scripts that take many of the steps
		r := rand.New(rand.NewPCG(seed, 7))
		data := make([]byte, 40+100*(seed%8))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2048 {
			return
		}
		bubble(t, func(t *testing.T, e *env) {
			s := &script{data: data, rest: rand.NewPCG(1, 2)}
			l := &line{t: t, e: e, other: e.another(t), s: s, r: rand.New(s)}
			for range 1 + l.r.IntN(6) {
				l.enter()
			}
			l.me = e.enter(t, "me")
			got := e.await(t.Context(), l.me)
			for len(s.data) > 0 {
				l.step()
				synctest.Wait()
				select {
				case o := <-got:
					l.requireRight(o)
					return
				default:
				}
			}
			e.c.Reset()
			for _, kv := range l.older() {
				require.True(t, e.srv.Delete(kv))
			}
			began := time.Now()
			l.requireRight(receive(t, got))
			require.LessOrEqual(t, time.Since(began), time.Minute, "requests that hang are given up")
		})
	})
}

// line is a queue with one waiter, me.
type line struct {
	t     *testing.T
	e     *env
	other *env // another process, without faults
	s     *script
	r     *rand.Rand
	me    place
	gone  bool // me's key was deleted
	n     int
}

// older returns the keys of the contenders before me.
func (l *line) older() []string {
	var keys []string
	for _, kv := range l.e.srv.Keys("a/") {
		if kv.CreateRevision < l.me.Rev && queue.Contends("a/", kv) {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys
}

func (l *line) requireRight(o outcome[struct{}]) {
	l.t.Helper()
	if o.err != nil {
		require.ErrorIs(l.t, o.err, queue.ErrGone)
		require.True(l.t, l.gone, "its key exists")
		return
	}
	require.Empty(l.t, l.older(), "granted before its turn")
}

func (l *line) enter() {
	l.n++
	l.other.enter(l.t, string(rune('A'+l.n%26))+time.Duration(l.n).String())
}

func (l *line) step() {
	c, upTo := l.e.c, func(d time.Duration) time.Duration { return time.Duration(l.r.Int64N(int64(d))) }
	if l.r.IntN(3) > 0 { // otherwise two things happen at the same instant
		time.Sleep(upTo(300 * time.Millisecond))
	}
	switch l.r.IntN(16) {
	case 0:
		if older := l.older(); len(older) > 0 {
			l.e.srv.Delete(older[l.r.IntN(len(older))])
		}
	case 2: // deleted and put again, behind me
		if older := l.older(); len(older) > 0 {
			key := older[l.r.IntN(len(older))]
			l.e.srv.Delete(key)
			_, err := l.other.c.Put(l.t.Context(), key, "", clientv3.WithLease(l.other.lease))
			require.NoError(l.t, err)
		}
	case 3: // written, with its create revision unchanged
		if older := l.older(); len(older) > 0 {
			_, err := l.other.c.Put(l.t.Context(), older[l.r.IntN(len(older))], "x", clientv3.WithLease(l.other.lease))
			require.NoError(l.t, err)
		}
	case 4:
		l.enter()
	case 1, 5, 6:
		c.BreakWatches([]error{fakeetcd.ErrUnavailable, rpctypes.ErrGRPCNoLeader}[l.r.IntN(2)])
	case 7:
		l.e.Conn.Streams(l.e.Bound).Suspect()
	case 8, 9:
		require.NoError(l.t, l.e.srv.Compact(l.e.srv.Put("noise", "")))
	case 10:
		c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1 + l.r.IntN(3), After: upTo(2 * time.Second)})
	case 11:
		c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1 + l.r.IntN(3), Before: upTo(time.Second), After: upTo(time.Second)})
	case 12:
		c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable})
	case 13:
		c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, After: upTo(time.Second)})
	case 14:
		l.e.srv.Put("a/"+string(rune('a'+l.r.IntN(3)))+"/nested", "") // no contender
	case 15:
		if l.r.IntN(8) == 0 && !l.gone {
			l.gone = l.e.srv.Delete(l.me.Key)
		}
	}
}
