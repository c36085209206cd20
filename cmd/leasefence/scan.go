package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	locks "github.com/leasefence/leasefence/internal/queue"
)

// prefixWanted adds to a denied permission what the user can do about it.
func prefixWanted(err error) error {
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return fmt.Errorf("%w: give a PREFIX that this user may read", err)
	}
	return err
}

// keysAtATime is the number of keys that one request reads.
const keysAtATime = 2000

// scan reads the names of all keys that begin with prefix, page by page. All pages are of revision rev; if that is 0, each
// is of its own time, so that etcd may compact its history in between. It ends early if see returns false.
func scan(ctx context.Context, client *clientv3.Client, prefix string, rev int64, see func(*mvccpb.KeyValue) bool) error {
	key, end := cmp.Or(prefix, "\x00"), clientv3.GetPrefixRangeEnd(prefix)
	for {
		resp, err := client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(keysAtATime), clientv3.WithRev(rev))
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			if !see(kv) {
				return nil
			}
		}
		if !resp.More {
			return nil
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// smallLease is smaller than every contender's lease, as in lease.List: a smaller number at the end of a key is data.
const smallLease = 1 << 32

// contends reports whether a key has the form of a contender's key, and the lease in its name. The name alone does not
// show whether the key is attached to that lease.
func contends(kv *mvccpb.KeyValue) (clientv3.LeaseID, bool) {
	form, ok := locks.FormOf(kv.Key)
	return form.Lease, ok && uint64(form.Lease) >= smallLease
}
