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
	// firstPage is how many keys the first page of a reading has, and pageBytes how large the others may be. The next reading
	// begins with a page as large as those have become, up to pagePerName for each key and each nested name.
	firstPage   = 16
	pageBytes   = 4 << 20
	pagePerName = 64
	// mostThick is how many nested names of one queue are remembered that are not to be read.
	mostThick = 16
)

// names are the keys right below a prefix, without their values and leases, as they stood at one revision.
type names struct {
	keys  []*mvccpb.KeyValue // oldest first
	rev   int64
	other bool     // there are keys of nested names too
	thick []string // nested names with keys that are too long to be a lock's, each with the "/" at its end
	page  int      // so many keys may be read at a time
	count int      // of the keys and of the nested names that were met
	dir   string   // the nested name that was met last
}

// read reads the names below prefix; page and thick are what an earlier reading has found. Opts may be a revision and bounds.
//
// It asks for keys alone, in their order, which costs the server the least by far: pages in the order of creation would
// have it sort the whole queue for each. Where a page ends amid the keys of a nested name, the rest of them are
// skipped. The keys of nested names are somebody else's, who may have made them many and long: pages grow as long as
// the keys are short, and a nested name with long ones is not read again.
func read(a *etcd.Attempt, prefix string, page int, thick []string, opts ...clientv3.OpOption) (names, error) {
	op := clientv3.OpGet(prefix, opts...)
	for {
		n, err := readAt(a, op.Rev(), prefix, page, thick, opts...)
		if op.Rev() != 0 || !errors.Is(err, rpctypes.ErrCompacted) {
			return n, err
		}
		// Between two pages: a newer revision serves as well.
	}
}

// readAt is read at a revision, or at the present one if that is 0.
func readAt(a *etcd.Attempt, rev int64, prefix string, page int, thick []string, opts ...clientv3.OpOption) (names, error) {
	n := names{rev: rev, page: max(page, firstPage)}
	opts = append([]clientv3.OpOption{clientv3.WithKeysOnly()}, opts...)
	for key, end := prefix, endOf(prefix); key < end; {
		stop := end
		if i := slices.IndexFunc(thick, func(dir string) bool { return dir >= key }); i >= 0 {
			stop = thick[i]
		}
		more := false
		if key < stop {
			resp, err := a.Get(key, append(opts, clientv3.WithRange(stop), clientv3.WithLimit(int64(n.page)))...)
			if err != nil {
				return n, err
			}
			if n.rev == 0 {
				n.rev = resp.Header.Revision
				opts = append(opts, clientv3.WithRev(n.rev)) // for the other pages
			}
			longest := n.take(prefix, resp.Kvs)
			n.page = max(firstPage, min(16*n.page, pageBytes/longest))
			if more = resp.More; more {
				key = after(prefix, resp.Kvs[len(resp.Kvs)-1].Key)
			}
		}
		if !more {
			if stop == end {
				break
			}
			key = stop[:len(stop)-1] + "0" // '0' comes right after '/'
		}
	}
	n.page = min(n.page, max(firstPage, pagePerName*n.count)) // more would be keys of nested names, which are better skipped
	slices.SortFunc(n.keys, func(a, b *mvccpb.KeyValue) int {
		return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), bytes.Compare(a.Key, b.Key))
	})
	return n, nil
}

// take takes in a page, and returns how long its longest key is, or 64.
func (n *names) take(prefix string, page []*mvccpb.KeyValue) (longest int) {
	longest = 64
	for _, kv := range page {
		longest = max(longest, len(kv.Key))
		dir := nestedIn(prefix, kv.Key)
		switch {
		case dir == "":
			n.keys = append(n.keys, kv)
			n.count++
			continue
		case dir != n.dir:
			n.dir = dir
			n.count++
		}
		if len(kv.Key) > 4*MaxName && len(dir) <= 4*MaxName && !slices.Contains(n.thick, dir) {
			n.thick = append(n.thick, dir)
		}
		n.other = true
	}
	return longest
}

// after is where to go on after a key: past all keys of a nested name.
func after(prefix string, key []byte) string {
	if dir := nestedIn(prefix, key); dir != "" {
		return dir[:len(dir)-1] + "0"
	}
	return string(key) + "\x00"
}

// nestedIn is the part of a key up to the first "/" after prefix, and with it; "" if there is none.
func nestedIn(prefix string, key []byte) string {
	i := bytes.IndexByte(key[len(prefix):], '/')
	if i < 0 {
		return ""
	}
	return string(key[:len(prefix)+i+1])
}

// Children reads the keys right below prefix, oldest first, without their values and leases, and the revision at which
// they stood. Opts may be a revision and bounds. It is one attempt.
func Children(a *etcd.Attempt, prefix string, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	n, err := read(a, prefix, 0, nil, opts...)
	return n.keys, n.rev, err
}

// Contenders reads those of keys that contend in the queue of prefix, with their values, in their order, as they are now
// or with opts as they were. It ends with the first of them if one is wanted. It is one attempt.
func Contenders(a *etcd.Attempt, prefix string, keys []*mvccpb.KeyValue, one bool, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, error) {
	list := []*mvccpb.KeyValue{}
	most := etcd.PartSize
	if one {
		most = 1
	}
	_, err := etcd.InParts(keys, most, 1, func(part []*mvccpb.KeyValue) error {
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
			if kv != nil && kv.CreateRevision == was.CreateRevision && Contends(prefix, kv) {
				list = append(list, kv)
			}
		}
		return nil
	})
	return list, err
}
