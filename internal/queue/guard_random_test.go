package queue_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// world is Guards under random events, with a model of what they must and may report.
type world struct {
	*guards

	t       *testing.T
	r       *rand.Rand
	own     *env              // a second client of the session, without faults
	present []place           // guarded and unchanged
	harmed  []place           // guarded, and somebody else has changed their keys
	ops     int               // the most operations that the server allows in a transaction; 0: the default
	may     map[notice]bool   // everything that has happened
	must    map[string]notice // by key: the first change of each key that is still guarded
}

func (w *world) step(most int) {
	e := w.e
	upTo := func(d time.Duration) time.Duration { return time.Duration(w.r.Int64N(int64(d))) }
	if w.r.IntN(3) > 0 { // otherwise two things happen at the same instant
		time.Sleep(upTo(120 * time.Millisecond))
	}
	switch n := w.r.IntN(100); {
	case n < 45 && len(w.present) < most:
		for range 1 + w.r.IntN(max(1, most/8)) {
			w.enter()
		}
	case n < 60:
		w.leaveOne(&w.present)
	case n < 63:
		w.leaveOne(&w.harmed)
	case n < 75:
		w.harm()
	case n < 80:
		e.srv.Put(w.name()+"/foreign", "")
	case n < 83:
		e.c.BreakWatches([]error{fakeetcd.ErrUnavailable, rpctypes.ErrGRPCNoLeader}[w.r.IntN(2)])
	case n < 85:
		e.Conn.Streams(e.Bound).Suspect()
	case n < 86:
		e.compact()
	case n < 87:
		e.c.Cut()
		time.AfterFunc(upTo(3*time.Second), e.c.Restore)
	case n < 91:
		e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1 + w.r.IntN(5), Before: upTo(time.Second), After: upTo(time.Second)})
	case n < 95:
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1 + w.r.IntN(5), Before: upTo(time.Second), After: upTo(time.Second)})
	case n < 97:
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
	case n < 98:
		which := anyKey
		if w.r.IntN(2) == 0 && len(w.present) > 0 {
			one := []byte(w.present[w.r.IntN(len(w.present))].Key)
			which = func(key []byte) bool { return bytes.Equal(key, one) }
		}
		permit := e.deny(denials[w.r.IntN(len(denials))], which)
		time.AfterFunc(upTo(10*time.Second), permit)
	default:
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1 + w.r.IntN(5), After: upTo(2 * time.Second)})
	}
}

// name returns one of a hundred names with a common prefix, or another name.
func (w *world) name() string {
	n := w.r.IntN(300)
	if n < 100 {
		return numbered(n)
	}
	return scattered(n)
}

func (w *world) enter() {
	entry := queue.NewEntry(w.name(), w.e.lease, fmt.Sprint(w.r.IntN(1000)))
	if w.byPlace[entry.Key] != nil {
		return // as in a session: no key is used again while it is guarded
	}
	entered, ahead, err := w.own.Enter(w.own.once(w.t.Context()), entry, "")
	if err != nil {
		require.ErrorIs(w.t, err, queue.ErrTaken)
		return
	}
	p := place{entered, ahead}
	w.present = append(w.present, p)
	w.add(p)
}

// leaveOne removes one entry and deletes its key, as its owner does.
func (w *world) leaveOne(list *[]place) {
	if len(*list) == 0 {
		return
	}
	i := w.r.IntN(len(*list))
	p := (*list)[i]
	*list = append((*list)[:i], (*list)[i+1:]...)
	w.remove(p)
	delete(w.must, p.Key)
	left, err := w.own.Leave(w.own.once(w.t.Context()), p.Entry)
	require.NoError(w.t, err)
	if left && w.r.IntN(2) == 0 {
		w.again(p)
	}
}

// again enters with the same key, at once or a little later.
func (w *world) again(p place) {
	time.Sleep(time.Duration(w.r.IntN(300)) * time.Millisecond)
	p.Rev = 0
	entered, ahead, err := w.own.Enter(w.own.once(w.t.Context()), p.Entry, "")
	require.NoError(w.t, err)
	p = place{entered, ahead}
	w.present = append(w.present, p)
	w.add(p)
}

// harm changes a key as somebody else.
func (w *world) harm() {
	if len(w.present) == 0 {
		return
	}
	i := w.r.IntN(len(w.present))
	p := w.present[i]
	w.present = append(w.present[:i], w.present[i+1:]...)
	w.harmed = append(w.harmed, p)
	switch w.r.IntN(3) {
	case 0:
		require.True(w.t, w.e.srv.Delete(p.Key))
		w.must[p.Key] = deleted(p)
		w.may[deleted(p)] = true
	case 1:
		w.e.srv.Put(p.Key, "x")
		w.must[p.Key] = overwritten(p)
		w.may[overwritten(p)] = true
	default:
		require.True(w.t, w.e.srv.Delete(p.Key))
		w.e.srv.Put(p.Key, "x")
		w.must[p.Key] = deleted(p)
		w.may[deleted(p)], w.may[overwritten(p)] = true, true
	}
}

// endNow ends the lease, in whatever state the guards are: nothing is reported any more, and nothing is left.
func (w *world) endNow() {
	w.end()
	synctest.Wait()
	w.drain()
	w.enter() // after the end: nothing is started
	if len(w.present) > 0 {
		w.e.srv.Delete(w.present[0].Key)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	require.Empty(w.t, w.drain())
	require.True(w.t, w.e.finished())
}

// settle lets the network recover, and compares the notices with the model.
func (w *world) settle() {
	t, e := w.t, w.e
	e.c.Reset()
	if w.ops > 0 {
		e.allowOps(w.ops)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	got := make(map[notice]bool)
	for _, one := range w.drain() {
		require.True(t, w.may[one], "%+v was reported without a reason", one)
		got[one] = true
	}
	for _, one := range w.must {
		require.True(t, got[one], "%+v was not reported", one)
	}

	// The remaining entries are guarded by events, with one watch each.
	e.c.BreakWatches(rpctypes.ErrGRPCNoLeader) // also ends watches that etcd's client has abandoned
	time.Sleep(time.Minute)
	synctest.Wait()
	w.drain()
	require.Equal(t, min(len(w.present)+len(w.harmed), mostWatched), e.srv.Watchers())
	var want []notice
	for _, p := range w.present {
		require.True(t, e.srv.Delete(p.Key))
		want = append(want, deleted(p))
	}
	time.Sleep(every)
	synctest.Wait()
	w.requireNotices(t, want...)
	w.remove(append(w.present, w.harmed...)...)
	synctest.Wait()
	require.Zero(t, e.srv.Watchers())
	w.end()
	require.True(t, e.finished())
}
