package queue

import (
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// roll is what the names of a queue's keys tell.
type roll struct {
	contenders []*mvccpb.KeyValue // those that have the form, oldest first; see attached
	strays     int                // direct children that have not
	others     bool               // there are keys that are no contenders'
	whole      bool               // all keys of the queue were read
	seen       int64              // the revision at which they stood
}

// call reads the names of a queue's keys, of contenders created from minRev to maxRev (0: without a bound). How large a page
// may be, and which nested names are not to be read, is remembered.
func (q *Queue) call(a *etcd.Attempt, prefix string, minRev, maxRev int64) (roll, error) {
	r := roll{whole: minRev == 0}
	var opts []clientv3.OpOption
	if minRev > 0 { // or else it is most of them, and a page is read faster without
		opts = append(opts, clientv3.WithMinCreateRev(minRev))
	}
	known := q.contended.of(prefix)
	n, err := read(a, prefix, known.page, known.thick, opts...)
	if err != nil {
		return r, err
	}
	q.contended.paged(prefix, n.page, n.thick, r.whole)
	r.seen, r.others = n.rev, n.other
	for _, kv := range n.keys {
		switch {
		case maxRev > 0 && kv.CreateRevision > maxRev:
		case hasForm(prefix, kv.Key):
			r.contenders = append(r.contenders, kv)
		default:
			r.strays++
		}
	}
	return r, nil
}

// pick returns the first contender of the roll, nil if there is none. The error is ErrGone if e is an entry that has
// entered, and its own key is gone by then.
func (q *Queue) pick(a *etcd.Attempt, e Entry, r roll) (*mvccpb.KeyValue, error) {
	n, err := q.attached(a, e, r.contenders)
	if err != nil {
		return nil, err
	}
	strays := r.strays + n
	if r.whole {
		q.contended.mix(e.Prefix, r.others || strays > 0)
	}
	if strays > 0 && q.Report != nil {
		q.Report(e.Prefix, strays)
	}
	return first(r.contenders[n:]), nil
}

// attached is how many of the keys, from the first on, are not attached to the lease in their names: somebody has planted
// them. The keys have the form of contenders. The error is ErrGone if e is an entry that has entered and its key is gone.
//
// It compares leases, since a read of keys does not tell them and one of values may be large.
func (q *Queue) attached(a *etcd.Attempt, e Entry, list []*mvccpb.KeyValue) (int, error) {
	passed := 0
	for size, most := 1, etcd.PartSize; ; {
		part := list[passed:min(passed+size, len(list))]
		if len(part) == 0 && e.Rev == 0 {
			return 0, nil
		}
		var cmps []clientv3.Cmp
		var own []clientv3.Op
		for _, kv := range part {
			cmps = append(cmps, isAttached(e.Prefix, string(kv.Key), "!="))
		}
		if e.Rev != 0 {
			cmps = append(cmps, e.Held())
			own = append(own, clientv3.OpGet(e.Key, clientv3.WithKeysOnly()))
		}
		resp, err := a.Txn(cmps, nil, own)
		switch {
		case errors.Is(err, rpctypes.ErrTooManyOps) && len(part) > 1:
			most = len(part) / 2
			size = most
			continue
		case err != nil:
			return 0, err
		case resp.Succeeded: // none of them is
			if passed += len(part); passed == len(list) {
				return passed, nil
			}
			size = min(2*size, most)
			continue
		}
		if e.Rev != 0 {
			if kv := first(resp.Responses[0].GetResponseRange().Kvs); kv == nil || kv.CreateRevision != e.Rev {
				return 0, ErrGone
			}
		}
		if len(part) == 1 {
			return passed, nil
		}
		size = len(part) / 2
	}
}

// isAttached compares the lease of a key with that in its name.
func isAttached(prefix, key, how string) clientv3.Cmp {
	id, _ := leaseIn(prefix, []byte(key))
	return clientv3.Compare(clientv3.LeaseValue(key), how, clientv3.LeaseID(id))
}
