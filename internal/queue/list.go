package queue

import (
	"bytes"
	"cmp"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

const (
	// firstPage is the number of keys in the first page of a reading. Each page may have 16 times as many keys as the
	// one before, up to pageBytes.
	firstPage = 16
	pageBytes = 4 << 20
)

// roll is what the names of a queue's keys show, without their values and leases, at one revision.
type roll struct {
	keys   []*mvccpb.KeyValue // those with the form of contenders, oldest first; attached looks up their leases
	strays int                // the number of direct children that do not have it
	nested bool               // there are keys of nested names
	whole  bool               // all keys of the queue were read
	rev    int64
}

// read reads the names from prefix to end. opts may be a revision and bounds.
//
// It reads keys alone, in the order of names, which costs the server the least by far: for pages in the order of
// creation it would sort the whole queue each time. If a page ends within the keys of a nested name, the rest of
// these are skipped: they are somebody else's, and may be many and long.
func read(a *etcd.Attempt, prefix, end string, opts ...clientv3.OpOption) (roll, error) {
	op := clientv3.OpGet(prefix, opts...)
	for {
		r, err := readAt(a, op.Rev(), prefix, end, opts...)
		if op.Rev() != 0 || !errors.Is(err, rpctypes.ErrCompacted) {
			return r, err
		}
		// Compacted between two pages: a newer revision serves as well.
	}
}

// readAt is read at a revision; 0 is the present one.
func readAt(a *etcd.Attempt, rev int64, prefix, end string, opts ...clientv3.OpOption) (roll, error) {
	r := roll{rev: rev}
	opts = append([]clientv3.OpOption{clientv3.WithKeysOnly(), clientv3.WithRange(end)}, opts...)
	for key, page, more := prefix, firstPage, true; more; {
		resp, err := a.Get(key, append(opts, clientv3.WithLimit(int64(page)))...)
		if err != nil {
			return r, err
		}
		if r.rev == 0 {
			r.rev = resp.Header.Revision
			opts = append(opts, clientv3.WithRev(r.rev)) // for the other pages
		}
		longest := 64
		for _, kv := range resp.Kvs {
			longest = max(longest, len(kv.Key))
			switch {
			case nestedIn(prefix, kv.Key) != "":
				r.nested = true
			case hasForm(prefix, kv.Key):
				r.keys = append(r.keys, kv)
			default:
				r.strays++
			}
		}
		if more = resp.More; more {
			key = after(prefix, resp.Kvs[len(resp.Kvs)-1].Key)
			page = max(firstPage, min(16*page, pageBytes/longest))
		}
	}
	slices.SortFunc(r.keys, func(a, b *mvccpb.KeyValue) int {
		return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), bytes.Compare(a.Key, b.Key))
	})
	return r, nil
}

// after returns where to go on after a key: behind it, or behind all keys of its nested name.
func after(prefix string, key []byte) string {
	if dir := nestedIn(prefix, key); dir != "" {
		return dir[:len(dir)-1] + "0"
	}
	return string(key) + "\x00"
}

// nestedIn returns the part of a key up to and including the first "/" after prefix, or "" if there is none.
func nestedIn(prefix string, key []byte) string {
	i := bytes.IndexByte(key[len(prefix):], '/')
	if i < 0 {
		return ""
	}
	return string(key[:len(prefix)+i+1])
}

// Children reads the keys directly below prefix that have the form of contenders, oldest first, without their values and
// leases, and returns the revision of the reading too. opts may be a revision and bounds. It is one attempt.
func Children(a *etcd.Attempt, prefix string, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	r, err := read(a, prefix, endOf(prefix), opts...)
	return r.keys, r.rev, err
}

// Contenders reads keys that have the form of contenders, and returns the contenders among them, with their values and in
// their order; with one set only the first. opts may be a revision. It is one attempt.
func Contenders(a *etcd.Attempt, keys []*mvccpb.KeyValue, one bool, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, error) {
	list := []*mvccpb.KeyValue{}
	send := func(part []*mvccpb.KeyValue) error {
		if one && len(list) > 0 {
			return nil
		}
		gets := make([]clientv3.Op, len(part))
		for i, kv := range part {
			gets[i] = clientv3.OpGet(string(kv.Key), opts...)
		}
		resp, err := a.Txn(nil, gets, nil)
		if err != nil {
			return err
		}
		for i, was := range part {
			kv := first(resp.Responses[i].GetResponseRange().Kvs)
			if kv != nil && kv.CreateRevision == was.CreateRevision && Contends(Below(kv.Key), kv) {
				list = append(list, kv)
			}
		}
		return nil
	}
	if one && len(keys) > 1 { // mostly the first is a contender
		if err := send(keys[:1]); err != nil {
			return list, err
		}
		keys = keys[1:]
	}
	_, err := etcd.InParts(keys, etcd.PartSize, 1, send)
	if one {
		list = list[:min(1, len(list))]
	}
	return list, err
}

// Standing reads the contenders of a queue with their values, with one set only the first, and with slots set also those
// of the slots of a semaphore of the same name. It returns the revision of the reading too. opts may be a revision. It
// is one attempt.
func Standing(a *etcd.Attempt, prefix string, slots, one bool, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	for {
		keys, rev, err := Children(a, prefix, opts...)
		at := []clientv3.OpOption{clientv3.WithRev(rev)}
		if err == nil && slots {
			var more *clientv3.GetResponse
			if more, err = a.Get(prefix+slotsDir, append(at, clientv3.WithPrefix(), clientv3.WithKeysOnly())...); err == nil {
				keys = append(keys, slices.DeleteFunc(more.Kvs, func(kv *mvccpb.KeyValue) bool {
					return !InQueues(prefix, kv.Key) || !hasForm(Below(kv.Key), kv.Key)
				})...)
			}
		}
		if err == nil {
			keys, err = Contenders(a, keys, one, at...)
		}
		if errors.Is(err, rpctypes.ErrCompacted) && len(opts) == 0 {
			continue // compacted between two requests: a newer revision serves as well
		}
		return keys, rev, err
	}
}

// InQueues reports whether a key is directly in the queue of prefix or in that of one of its slots.
func InQueues(prefix string, key []byte) bool {
	below := Below(key)
	turnstile, slot := SlotOf(below)
	return below == prefix || slot && turnstile == prefix
}

// call reads the names of the keys that may exclude e and were created after one revision and before another (0: no
// bound).
func (q *Queue) call(a *etcd.Attempt, e Entry, after, before int64) (roll, error) {
	var opts []clientv3.OpOption
	if after > 0 { // there is no bound for before: most keys are older than it, and a page is read faster without
		opts = append(opts, clientv3.WithMinCreateRev(after+1))
	}
	r, err := read(a, e.Prefix, e.end(), opts...)
	r.whole = after == 0
	if i := slices.IndexFunc(r.keys, func(kv *mvccpb.KeyValue) bool { return before > 0 && kv.CreateRevision >= before }); i >= 0 {
		r.keys = r.keys[:i] // they are in order
	}
	return r, err
}

// pick returns the first contender of the roll, nil if there is none. The error is ErrGone if e has entered and its
// own key is gone.
func (q *Queue) pick(a *etcd.Attempt, e Entry, r roll) (*mvccpb.KeyValue, error) {
	n, strays, err := q.attached(a, e, r.keys)
	if err != nil {
		return nil, err
	}
	strays += r.strays
	mixed := r.nested || strays > 0
	if mixed || r.whole && n+1 >= len(r.keys) { // otherwise some leases were not looked up
		q.contended.mix(e.rivals(), mixed)
	}
	if strays > 0 && q.Report != nil {
		q.Report(e.Prefix, strays)
	}
	return first(r.keys[n:]), nil
}

// attached returns how many of the first keys in a row are not attached to the leases in their names, and how many of
// these are still there: they are data whose names look like contenders, such as jobs/1 beside the lock jobs. All keys
// have the form of contenders. The error is ErrGone if e has entered and its key is gone.
//
// It compares leases because a read of keys alone does not return them, and a read of values may be large.
func (q *Queue) attached(a *etcd.Attempt, e Entry, list []*mvccpb.KeyValue) (passed, strays int, err error) {
	var own []clientv3.Cmp
	if e.Rev != 0 {
		own = []clientv3.Cmp{e.Held()}
	}
	found := false
	look := func(part []*mvccpb.KeyValue) error {
		if found {
			return nil
		}
		ops := make([]clientv3.Op, len(part))
		for i, kv := range part {
			there := clientv3.OpGet(string(kv.Key), clientv3.WithCountOnly())
			ops[i] = clientv3.OpTxn([]clientv3.Cmp{isAttached(e.Prefix, string(kv.Key))}, nil, []clientv3.Op{there})
		}
		resp, err := a.Txn(own, ops, nil)
		switch {
		case err != nil:
			return err
		case !resp.Succeeded:
			return ErrGone
		}
		for _, r := range resp.Responses {
			one := r.GetResponseTxn()
			if found = one.Succeeded; found {
				break
			}
			passed++
			strays += int(one.Responses[0].GetResponseRange().Count)
		}
		return nil
	}
	n := min(1, len(list)) // mostly the first is attached
	if n > 0 || own != nil {
		err = look(list[:n])
	}
	if err == nil {
		_, err = etcd.InParts(list[n:], etcd.PartSize, 1, look)
	}
	return passed, strays, err
}

// isAttached compares true if a key is attached to the lease in its name.
func isAttached(prefix, key string) clientv3.Cmp {
	id, _ := leaseIn(prefix, []byte(key))
	return clientv3.Compare(clientv3.LeaseValue(key), "=", clientv3.LeaseID(id))
}
