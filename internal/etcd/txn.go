package etcd

import (
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Txn is one caller's transaction. It must not contain another one.
type Txn struct {
	// Queue is the prefix of the queue into which the transaction may put a contender, or whose order it depends on;
	// "" if it does neither. Two of one queue never share a commit: the create revisions of their keys would tie, and
	// what each compares is compared before the other's operations.
	Queue string

	If         []clientv3.Cmp
	Then, Else []clientv3.Op
}

// Result of a transaction.
type Result struct {
	Succeeded bool                       // the comparisons held
	Revision  int64                      // of the store after it; that of its writes, if there were any
	Responses []*etcdserverpb.ResponseOp // to Then or Else
}

// op is the transaction as a part of a larger one.
func (t Txn) op() clientv3.Op { return clientv3.OpTxn(t.If, t.Then, t.Else) }

// size is about how many bytes the transaction takes in a request.
func (t Txn) size() int {
	const frame = 32 // of an operation, generously
	n := frame
	for _, c := range t.If {
		n += frame + len(c.KeyBytes()) + len(c.ValueBytes())
	}
	for _, ops := range [...][]clientv3.Op{t.Then, t.Else} {
		for _, op := range ops {
			n += frame + len(op.KeyBytes()) + len(op.RangeBytes()) + len(op.ValueBytes())
		}
	}
	return n
}
