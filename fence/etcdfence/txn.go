package etcdfence

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// txn collects a transaction until its Commit.
type txn struct {
	ctx  context.Context //nolint:containedctx // clientv3.KV gives it to Txn, clientv3.Txn takes none
	gate gate
	body body
	last string // the part that was given last
	err  error  // of the calls, not of the server
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

// Then adds what is done if they all hold.
func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	if t.next("Then", "", "If") {
		t.body.then = slices.Clone(ops)
	}
	return t
}

// Else adds what is done if one does not.
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

// next notes that a part is given, and reports whether it may come after those before it.
func (t *txn) next(part string, after ...string) bool {
	if t.err == nil && !slices.Contains(after, t.last) {
		t.err = fmt.Errorf("etcdfence: transaction: %s after %s, want If, Then, Else, each at most once",
			part, t.last)
	}
	t.last = part
	return t.err == nil
}
