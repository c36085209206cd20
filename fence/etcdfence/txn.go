package etcdfence

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// txn collects the parts of a transaction until Commit.
type txn struct {
	ctx  context.Context //nolint:containedctx // clientv3.KV gives it to Txn, clientv3.Txn takes none
	gate gate
	body body
	last string // the last part that was set
	err  error  // of calls in the wrong order
}

// If adds the caller's comparisons.
func (t *txn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	if t.next("If", "") {
		for i := range cmps {
			t.body.cmps = append(t.body.cmps, cmps[i].Clone())
		}
	}
	return t
}

// Then sets the operations to do if all comparisons are true.
func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	if t.next("Then", "", "If") {
		t.body.then = slices.Clone(ops)
	}
	return t
}

// Else sets the operations to do if a comparison is false.
func (t *txn) Else(ops ...clientv3.Op) clientv3.Txn {
	if t.next("Else", "", "If", "Then") {
		t.body.otherwise = slices.Clone(ops)
	}
	return t
}

// Commit sends the transaction.
func (t *txn) Commit() (*clientv3.TxnResponse, error) {
	if t.err != nil {
		return nil, t.err
	}
	return t.gate.commit(t.ctx, t.body)
}

// next records a part and reports whether it may follow the part before it.
func (t *txn) next(part string, after ...string) bool {
	if t.err == nil && !slices.Contains(after, t.last) {
		t.err = fmt.Errorf("etcdfence: transaction: %s after %s, want If, Then, Else, each at most once",
			part, t.last)
	}
	t.last = part
	return t.err == nil
}
