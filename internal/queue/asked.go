package queue

import (
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// A holder is asked to let go through its own key, which it guards anyway: a line is put behind the text in it. The line has the
// key's create revision, so that no text that somebody has chosen before can be taken for it.

func askedLine(rev int64) string { return "\n(asked to release " + strconv.FormatInt(rev, 10) + ")" }

// Asked reports whether a contender is asked to let go.
func Asked(kv *mvccpb.KeyValue) bool {
	return strings.HasSuffix(string(kv.Value), askedLine(kv.CreateRevision))
}

// Text is what a contender has put into its key, without the line that asks it to let go.
func Text(kv *mvccpb.KeyValue) string {
	return strings.TrimSuffix(string(kv.Value), askedLine(kv.CreateRevision))
}

// Ask asks the contender with this key and create revision to let go. It reports false if the key is not there any more or was
// taken off the lease. It is one attempt, and repeating it is safe: a contender is asked once.
func Ask(a *etcd.Attempt, key string, rev int64) (there bool, err error) {
	resp, err := a.Get(key)
	if err != nil {
		return false, err
	}
	for kv := first(resp.Kvs); kv != nil && kv.CreateRevision == rev && Contends(Below(kv.Key), kv); {
		if Asked(kv) {
			return true, nil
		}
		// A leader may proclaim another value meanwhile, and the key may become another contender's.
		put, err := a.Txn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)},
			[]clientv3.Op{clientv3.OpPut(key, Text(kv)+askedLine(rev), clientv3.WithIgnoreLease())}, []clientv3.Op{clientv3.OpGet(key)})
		if err != nil || put.Succeeded {
			return err == nil, err
		}
		kv = first(put.Responses[0].GetResponseRange().Kvs)
	}
	return false, nil
}
