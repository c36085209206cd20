package queue

import (
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// To ask a holder to release its lock, a line is appended to the text in the holder's key, which the holder watches
// anyway. The line has the key's create revision, so no text that the holder chose before can be mistaken for it.

func askedLine(rev int64) string { return "\n(asked to release " + strconv.FormatInt(rev, 10) + ")" }

// Asked reports whether a contender was asked to release.
func Asked(kv *mvccpb.KeyValue) bool {
	return strings.HasSuffix(string(kv.Value), askedLine(kv.CreateRevision))
}

// Text returns what a contender has put into its key, without the line that asks it to release.
func Text(kv *mvccpb.KeyValue) string {
	return strings.TrimSuffix(string(kv.Value), askedLine(kv.CreateRevision))
}

// Ask asks the contender with this key and create revision to release. It reports false if the key is gone or was
// taken off its lease. It is one attempt, and repeating it is safe: the line is appended once.
func Ask(a *etcd.Attempt, key string, rev int64) (there bool, err error) {
	resp, err := a.Get(key)
	if err != nil {
		return false, err
	}
	for kv := first(resp.Kvs); kv != nil && kv.CreateRevision == rev && Contends(Below(kv.Key), kv); {
		if Asked(kv) {
			return true, nil
		}
		// The comparison is for a leader that proclaims another value meanwhile, and for a key that another contender
		// uses by now.
		put, err := a.Txn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)},
			[]clientv3.Op{clientv3.OpPut(key, Text(kv)+askedLine(rev), clientv3.WithIgnoreLease())}, []clientv3.Op{clientv3.OpGet(key)})
		if err != nil || put.Succeeded {
			return err == nil, err
		}
		kv = first(put.Responses[0].GetResponseRange().Kvs)
	}
	return false, nil
}
