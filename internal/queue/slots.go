package queue

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// A semaphore has slots, each with a queue of its own below the name. The holder of a permit is the owner of a slot,
// and its token is the revision at which it got that slot. The queue of the name itself is the turnstile: an
// acquisition that finds no free slot waits there. Only the owner of the turnstile takes a slot, in the transaction
// in which it leaves the turnstile. So a permit that is given back wakes one waiter.
//
// All processes must agree on the number of slots, which is in the suffix of each slot's key. Whoever takes a slot
// reads the others' keys in the same transaction, and gives up if an older one has another number. So the number of
// the oldest key is in force, and keys with other numbers are about to be deleted.

const slotsDir = "~slot/"

// SlotName returns the name of the queue of a slot.
func SlotName(name string, slot int) string { return name + "/" + slotsDir + strconv.Itoa(slot) }

// IsSlotName reports whether a name is one of SlotName, or below one, without a further part that begins with "~".
func IsSlotName(name string) bool {
	i := strings.LastIndex(name, "/"+slotsDir)
	return i >= 0 && !strings.Contains(name[i+len(slotsDir):], "/~")
}

// SlotOf returns the prefix of the turnstile for the prefix of the queue of one of its slots, or false for any other
// prefix.
func SlotOf(prefix string) (turnstile string, ok bool) {
	name := strings.TrimSuffix(prefix, "/")
	i := strings.LastIndexByte(name, '/') + 1
	k, err := strconv.Atoi(name[i:])
	turnstile, ok = strings.CutSuffix(name[:i], "/"+slotsDir)
	return turnstile + "/", ok && turnstile != "" && err == nil && k >= 0 && strconv.Itoa(k) == name[i:]
}

// SlotMark returns the beginning of the suffix of a slot's key, which has the number of slots.
func SlotMark(of int) string { return "of" + strconv.Itoa(of) + "-" }

// Slots are the slots of a semaphore that are taken.
type Slots struct {
	taken map[int]bool
	Any   *mvccpb.KeyValue // one of the keys, Other if that is set; nil if there is none
	// Other is the oldest key with another number of slots, which is Limit; nil if there is none.
	Other   *mvccpb.KeyValue
	Limit   int
	Passing bool // Other is about to be deleted: a key with the right number is older
}

// Free returns a random one of the slots that are not taken, or -1.
func (s Slots) Free(of int) int {
	first := rand.IntN(of)
	for i := range of {
		if k := (first + i) % of; !s.taken[k] {
			return k
		}
	}
	return -1
}

// readSlots reads the keys of all slots of the semaphore whose turnstile has the prefix.
func readSlots(prefix string) *pb.RequestOp {
	dir := prefix + slotsDir
	return etcd.Range(&pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(dir)), KeysOnly: true})
}

// slotsIn makes Slots of the answer to readSlots. If before is not 0, the numbers in keys that were created at before
// or later are ignored.
func slotsIn(prefix string, of int, before int64, resp *pb.RangeResponse) Slots {
	s := Slots{taken: make(map[int]bool)}
	own := int64(math.MaxInt64) // the oldest key with the right number
	for _, kv := range resp.Kvs {
		slot, child, _ := bytes.Cut(kv.Key[len(prefix)+len(slotsDir):], []byte("/"))
		k, err := strconv.Atoi(string(slot))
		if err != nil || strconv.Itoa(k) != string(slot) {
			continue // not a slot's, but a node's of a tree
		}
		s.taken[k], s.Any = true, kv
		_, suffix, _ := bytes.Cut(child, []byte("-of"))
		text, _, marked := strings.Cut(string(suffix), "-")
		limit, err := strconv.Atoi(text)
		switch {
		case !marked || err != nil || before != 0 && kv.CreateRevision >= before:
		case limit == of:
			own = min(own, kv.CreateRevision)
		case s.Other == nil || kv.CreateRevision < s.Other.CreateRevision:
			s.Other, s.Limit = kv, limit
		}
	}
	if s.Other != nil {
		s.Any, s.Passing = s.Other, own < s.Other.CreateRevision
	}
	return s
}

// TakeSlot takes the slot of e if that is free and nobody is in the turnstile. It returns e, with a revision if it
// has entered, the slots that are taken, and whether somebody is in the turnstile. It is one attempt, and repeating
// it with the same value is safe. If the turnstile has keys that are no contenders, TakeSlot takes the slot first,
// and leaves it again if it then finds an older contender in the turnstile. If the error is not nil, e may have
// entered.
func (q *Queue) TakeSlot(a *etcd.Attempt, turnstile, e Entry, of int, value string) (_ Entry, s Slots, waits bool, err error) {
	mixed := q.contended.mixed(turnstile.rivals())
	txn := etcd.Txn{If: []clientv3.Cmp{turnstile.empty(), e.empty()}, Else: []*pb.RequestOp{turnstile.few(true)}}
	if mixed {
		txn.If = txn.If[1:]
	}
	e, s, others, err := q.take(a, turnstile, e, of, value, txn)
	if err != nil {
		return e, s, false, err
	}
	waits = len(others) > 0 && !q.mixedBy(turnstile, others)
	if !mixed || e.Rev == 0 {
		return e, s, waits, nil
	}
	r, err := q.call(a, turnstile, 0, e.Rev)
	if err != nil {
		return e, s, false, err
	}
	older, err := q.pick(a, turnstile.outside(), r)
	if err != nil || older == nil {
		return e, s, false, err
	}
	e.disown()
	if _, err = q.Leave(a, []Entry{e}); err == nil {
		e.Rev, e.Disowned = 0, false
	}
	return e, s, true, err
}

// take carries out a transaction that also takes the slot of e and reads all slots. It returns e, with a revision if
// it has entered now or in an earlier attempt, the slots that are taken and, if txn did not succeed, what its Else has
// read.
func (q *Queue) take(a *etcd.Attempt, turnstile, e Entry, of int, value string, txn etcd.Txn) (Entry, Slots, []*mvccpb.KeyValue, error) {
	txn.Then = append([]*pb.RequestOp{e.put(value), readSlots(turnstile.Prefix)}, txn.Then...)
	txn.Else = append([]*pb.RequestOp{etcd.Get(e.Key), readSlots(turnstile.Prefix)}, txn.Else...)
	resp, err := q.Line.CommitAlone(a, txn)
	if err != nil {
		return e, Slots{}, nil, err
	}
	var read []*mvccpb.KeyValue
	if resp.Succeeded {
		e.Rev = resp.Revision
	} else {
		if e, err = e.recognised(resp.Responses[0], value); err != nil {
			return e, Slots{}, nil, err
		}
		read = resp.Responses[2].GetResponseRange().Kvs
	}
	return e, slotsIn(turnstile.Prefix, of, e.Rev, resp.Responses[1].GetResponseRange()), read, nil
}

// recognised returns e with its revision if an earlier attempt has put its key.
func (e Entry) recognised(read *pb.ResponseOp, value string) (Entry, error) {
	kv := first(read.GetResponseRange().Kvs)
	e.Rev = 0 // an earlier attempt may have set it
	switch {
	case e.owns(kv, value):
		e.Rev = kv.CreateRevision
	case kv != nil:
		return e, ErrTaken
	}
	return e, nil
}

// PassTurnstile takes the slot of e if that is free, and leaves the turnstile in the same transaction. It returns e,
// with a revision if it has entered. The error is ErrGone if the place in the turnstile is lost. It is one attempt, and
// repeating it with the same value is safe.
func (q *Queue) PassTurnstile(a *etcd.Attempt, turnstile, e Entry, of int, value string) (Entry, error) {
	e, _, place, err := q.take(a, turnstile, e, of, value, etcd.Txn{
		If:   []clientv3.Cmp{turnstile.Held(), e.empty()},
		Then: []*pb.RequestOp{turnstile.delete()},
		Else: []*pb.RequestOp{etcd.Get(turnstile.Key)},
	})
	if kv := first(place); err == nil && e.Rev == 0 && (kv == nil || kv.CreateRevision != turnstile.Rev) {
		err = ErrGone
	}
	return e, err
}

// AwaitSlots waits until enough returns true for the slots of the semaphore whose turnstile has the prefix. The error
// is ctx's cause, or that of a read that failed finally.
func (q *Queue) AwaitSlots(ctx context.Context, prefix string, of int, enough func(Slots) bool) error {
	var b etcd.Backoff
	for {
		done := false
		read := func() error {
			return q.Conn.Do(ctx, q.Bound, func(a *etcd.Attempt) error {
				resp, err := a.Get(prefix+slotsDir, clientv3.WithPrefix(), clientv3.WithKeysOnly())
				if err == nil {
					done = enough(slotsIn(prefix, of, 0, (*pb.RangeResponse)(resp)))
				}
				return err
			})
		}
		// A slot may have been left before the watch existed, so the first read comes after that.
		err := q.watch(ctx, prefix+slotsDir, func(_ context.Context, w *watch) error {
			for {
				if err := read(); err != nil || done {
					return err
				}
				if resp, ok := etcd.Next(w.ctx, w.events); !ok || resp.Err() != nil {
					return nil //nolint:nilerr // a watch that broke is opened again
				}
				b.Reset()
			}
		}, clientv3.WithPrefix(), clientv3.WithFilterPut())
		if err != nil || done {
			return err
		}
		if err := b.Sleep(ctx); err != nil {
			return err
		}
	}
}
