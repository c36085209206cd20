package election

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

// history is a key space below and beside a name, and all that happened in it.
type history struct {
	rnd    *rand.Rand
	rev    int64
	keys   map[string]*mvccpb.KeyValue
	events []*clientv3.Event
	leader []Leader // by revision
}

// names has the keys that may come and go: contenders of a few leases, nested names and others that do not contend.
var names = []string{
	"n/1", "n/1-a", "n/1-b", "n/2", "n/2-9990", "n/3", "n/a", "n/1/1", "n/2/2-x", "n/stray", "n/",
}

// step is one revision, of one to three keys.
func (h *history) step() {
	h.rev++
	for _, i := range h.rnd.Perm(len(names))[:1+h.rnd.IntN(3)] {
		key := names[i]
		old := h.keys[key]
		if old != nil && h.rnd.IntN(2) == 0 {
			delete(h.keys, key)
			h.events = append(h.events, &clientv3.Event{
				Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: h.rev},
			})
			continue
		}
		kv := &mvccpb.KeyValue{
			Key: []byte(key), Value: fmt.Append(nil, h.rnd.IntN(3)), Lease: h.rnd.Int64N(4), CreateRevision: h.rev, ModRevision: h.rev,
		}
		if old != nil {
			kv.CreateRevision = old.CreateRevision
		}
		h.keys[key] = kv
		h.events = append(h.events, &clientv3.Event{Type: mvccpb.Event_PUT, Kv: kv})
	}
	h.leader = append(h.leader, h.now())
}

// contenders in no order.
func (h *history) contenders() []Leader {
	var all []Leader
	for _, kv := range h.keys {
		if queue.Contends("n/", kv) {
			all = append(all, newLeader(kv))
		}
	}
	return all
}

// now is the leader by the rule itself: of those who contend the one with the smallest create revision.
func (h *history) now() Leader {
	all := h.contenders()
	if len(all) == 0 {
		return Leader{}
	}
	return slices.MinFunc(all, func(a, b Leader) int {
		if a.Token != b.Token {
			return int(a.Token - b.Token)
		}
		return slices.Compare([]byte(a.Key), []byte(b.Key))
	})
}

// A view that is told of events agrees with the key space at each revision, wherever it began, in whatever batches
// the events come and however often some come again.
func TestView_agreesWithTheKeySpace(t *testing.T) {
	for seed := range uint64(300) {
		h := &history{rnd: rand.New(rand.NewPCG(1, seed)), rev: 10, keys: map[string]*mvccpb.KeyValue{}}
		h.leader = make([]Leader, h.rev+1)
		for range h.rnd.IntN(20) {
			h.step()
		}
		v := view{prefix: "n/"}
		v.reset(h.contenders(), h.rev)
		require.Equal(t, h.now(), v.leader(), "seed %d", seed)
		for range 50 {
			h.step()
		}

		from, seen := v.rev, v.rev
		rest := h.events
		for len(rest) > 0 {
			// A batch ends where a revision does.
			n := 1 + h.rnd.IntN(min(10, len(rest)))
			for n < len(rest) && rest[n].Kv.ModRevision == rest[n-1].Kv.ModRevision {
				n++
			}
			v.apply(rest[:n], func() {
				require.Greater(t, v.rev, seen, "seed %d", seed)
				seen = v.rev
				require.Equal(t, h.leader[v.rev], v.leader(), "seed %d, revision %d", seed, v.rev)
			})
			rest = rest[n:]
			if h.rnd.IntN(5) == 0 { // a watch that is opened again too early
				rest = h.events[slices.IndexFunc(h.events, func(ev *clientv3.Event) bool {
					return ev.Kv.ModRevision > seen-h.rnd.Int64N(3) || ev == h.events[len(h.events)-1]
				}):]
				if len(rest) > 0 && rest[len(rest)-1].Kv.ModRevision <= seen {
					break
				}
			}
		}
		require.Equal(t, h.rev, v.rev, "seed %d", seed)
		require.Greater(t, v.rev, from)
	}
}

// Between two events of one revision there may be a leader who never was one.
func TestView_looksAtARevisionAsAWhole(t *testing.T) {
	put := func(key string, lease, created, rev int64) *clientv3.Event {
		return &clientv3.Event{Type: mvccpb.Event_PUT, Kv: &mvccpb.KeyValue{
			Key: []byte(key), Lease: lease, CreateRevision: created, ModRevision: rev,
		}}
	}
	remove := func(key string, rev int64) *clientv3.Event {
		return &clientv3.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}}
	}
	v := view{prefix: "n/"}
	v.reset(nil, 1)
	var seen []string
	v.apply([]*clientv3.Event{
		put("n/1-a", 1, 2, 2), put("n/1-b", 1, 3, 3), put("n/2", 2, 4, 4),
		remove("n/1-a", 5), remove("n/1-b", 5), // a lease has ended
		remove("n/2", 6), put("n/3", 3, 6, 6),
	}, func() { seen = append(seen, v.leader().Key) })
	require.Equal(t, []string{"n/1-a", "n/1-a", "n/1-a", "n/2", "n/3"}, seen)
}
