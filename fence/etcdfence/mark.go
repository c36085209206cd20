package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/etcd"
)

// ErrMalformedMark reports that a mark's key has a value that this package does not write. Nothing is accepted for the
// resource until an operator repairs the value: the highest token of a writer that was ever accepted there, a space, and
// the highest of a reader, or 0 if that is not higher. If they are not known, write the highest token of all as the
// first: it refuses the readers that hold the lock now. A space and the name of the lock that the resource follows come
// last, with the prefix of its sessions. Without a name the resource follows the lock of the next token that has one.
var ErrMalformedMark = errors.New("etcdfence: malformed mark")

// mark is a gate that a key's value controls: it is open to writers whose lock is the one in the value and whose tokens
// are not less than the marks there. Each accepted token raises the marks.
type mark struct {
	kv       clientv3.KV
	opts     Options
	resource string
}

func (m *mark) key() string { return m.opts.Prefix + m.resource }

func (m *mark) check(ctx context.Context) error {
	by, err := m.bid(ctx, admission.Bid{})
	if err != nil {
		return err
	}
	resp, err := m.kv.Get(ctx, m.key())
	if err != nil {
		return err
	}
	_, _, err = m.admit(by, resp.Kvs)
	m.opts.Hooks.Tell(ctx, by.Access(m.resource), err)
	return err
}

func (m *mark) commit(ctx context.Context, b body) (*clientv3.TxnResponse, error) {
	by, err := m.bid(ctx, admission.Bid{})
	if err != nil {
		return nil, err
	}
	if err := m.spares(b.then, b.otherwise); err != nil {
		return nil, err
	}
	return m.send(ctx, by, b)
}

func (m *mark) bid(ctx context.Context, by admission.Bid) (admission.Bid, error) {
	by.Lax = m.opts.AllowUnnamed
	by, err := by.From(ctx, m.opts.MaxEra)
	if err != nil {
		err = fmt.Errorf("etcdfence: token for %q: %w", m.resource, err)
	}
	return by, err
}

// send sends the body with the condition that the marks are already what this bid leaves. For a writer, it first guesses
// that: the guess is right for a tenure that has claimed, until a newer reader comes. Otherwise the same transaction
// reads the marks. A reader's marks cannot be guessed, so it reads them first. If the bid raises the marks or names
// their lock, send does so in one transaction with the body, on the condition that they are still those that were read:
// a token that has come in between must not be lost.
//
// A comparison of bytes (mark less than token) would save the first attempt but would accept values that are not
// numbers: no comparison of etcd can check that a lower value is well-formed.
//
// send sends another transaction only after the server has answered that nothing was done. Each repetition means that
// somebody else has changed the mark in between.
func (m *mark) send(ctx context.Context, by admission.Bid, b body) (_ *clientv3.TxnResponse, err error) {
	defer func() { m.opts.Hooks.Tell(ctx, by.Access(m.resource), err) }()
	key := m.key()
	is := func(v admission.Marks) clientv3.Cmp { return clientv3.Compare(clientv3.Value(key), "=", v.String()) }
	for cond, then, guess := is(admission.Marks{}.After(by)), b.ops(), true; ; guess = false {
		var found []*mvccpb.KeyValue
		if guess && by.Read {
			resp, err := m.kv.Get(ctx, key)
			if err != nil {
				return nil, err
			}
			found = resp.Kvs
		} else {
			// The read is not serializable: see held.successors.
			resp, err := etcd.Commit(ctx, m.kv, []clientv3.Cmp{cond}, then, []clientv3.Op{clientv3.OpGet(key)})
			if err != nil {
				return nil, err
			}
			if resp.Succeeded {
				return b.response(resp), nil
			}
			found = resp.Responses[0].GetResponseRange().GetKvs()
		}
		seen, rev, err := m.admit(by, found)
		if err != nil {
			return nil, err
		}
		switch next := seen.After(by); {
		case next != seen:
			// The Put comes last: etcd answers the reads of a transaction before its first write with the old revision.
			cond = clientv3.Compare(clientv3.ModRevision(key), "=", rev)
			then = append(slices.Clone(b.ops()), clientv3.OpPut(key, next.String()))
		case by.Read:
			return nil, nil //nolint:nilnil // A reader has no body.
		default:
			cond, then = is(next), b.ops()
		}
	}
}

// admit returns the marks that were read and their revision, which is unique to this state of the key and 0 if it is
// absent. It returns an error if the marks refuse the bid.
func (m *mark) admit(by admission.Bid, kvs []*mvccpb.KeyValue) (seen admission.Marks, rev int64, err error) {
	if len(kvs) > 0 {
		var ok bool
		if seen, ok = admission.ParseMarks(string(kvs[0].Value)); !ok {
			return seen, 0, fmt.Errorf("%w at %q: value %s, want the token of a writer and that of a reader, 0 if it is not higher, "+
				"and then perhaps the name of a lock", ErrMalformedMark, m.key(), clip.Quote(string(kvs[0].Value)))
		}
		rev = kvs[0].ModRevision
	}
	return seen, rev, seen.Refuse(m.resource, by)
}

// spares returns an error if an operation writes to the marks.
func (m *mark) spares(lists ...[]clientv3.Op) error {
	for _, ops := range lists {
		for _, op := range ops {
			if op.IsTxn() {
				_, then, otherwise := op.Txn()
				if err := m.spares(then, otherwise); err != nil {
					return err
				}
				continue
			}
			if !op.IsGet() && meets(string(op.KeyBytes()), string(op.RangeBytes()), m.opts.Prefix) {
				return fmt.Errorf("etcdfence: a write at %s covers marks, want keys without the prefix %q",
					clip.Quote(string(op.KeyBytes())), m.opts.Prefix)
			}
		}
	}
	return nil
}

// meets reports whether etcd's range [key, end) can contain a key with the prefix.
func meets(key, end, prefix string) bool {
	switch {
	case strings.HasPrefix(key, prefix):
		return true
	case key >= prefix: // without the prefix, so after all keys that have it
		return false
	default:
		return end == "\x00" || end > prefix // "" is the key alone, "\x00" is without an end
	}
}
