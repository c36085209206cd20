package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
)

// ErrMalformedMark reports that a mark's key has a value that this package does not write. Nothing is accepted for the resource
// until an operator writes the highest token of a writer that was ever accepted there, in 20 digits, and, if that of a reader is
// higher, a space and that. If they are not known, the highest of all will do: it refuses readers that hold the lock now.
var ErrMalformedMark = errors.New("etcdfence: malformed mark")

// mark is a gate that is open to writers whose tokens are not less than the marks in the value of a key. It raises them.
type mark struct {
	kv       clientv3.KV
	prefix   string // of all marks
	resource string
	maxEra   uint16
}

func (m *mark) key() string { return m.prefix + m.resource }

func (m *mark) claim(ctx context.Context) error {
	_, err := m.commit(ctx, body{})
	return err
}

func (m *mark) check(ctx context.Context) error {
	t, err := m.token(ctx)
	if err != nil {
		return err
	}
	resp, err := m.kv.Get(ctx, m.key())
	if err != nil {
		return err
	}
	_, err = m.admit(t, resp.Kvs)
	return err
}

// read accepts a reader that is not older than the write mark, and raises a lower read mark. It raises it on the condition that
// the marks are still those that were read. So whatever comes in between is seen: another reader, and a writer, whose mark the
// transaction must not lower.
func (m *mark) read(ctx context.Context) error {
	t, err := admission.ReadToken(ctx, m.maxEra)
	if err != nil {
		return fmt.Errorf("etcdfence: token for %q: %w", m.resource, err)
	}
	key := m.key()
	get, err := m.kv.Get(ctx, key)
	if err != nil {
		return err
	}
	for kvs := get.Kvs; ; {
		seen, err := m.see(kvs)
		switch {
		case err != nil:
			return err
		case fence.Token(t) < seen.write:
			return &fence.StaleError{Resource: m.resource, Token: fence.Token(t), Highest: seen.write, Read: true}
		case seen.raised(t) == seen.marks:
			return nil
		}
		resp, err := m.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", seen.rev)).
			Then(clientv3.OpPut(key, seen.raised(t).String())).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return err
		}
		if resp.Succeeded {
			return nil
		}
		kvs = resp.Responses[0].GetResponseRange().GetKvs()
	}
}

// commit sends the body with the condition that the mark equals the token, which is true for a tenure that has claimed until a
// newer reader comes. If it is false, the same transaction reads the marks. commit then raises a lower or missing mark in one
// transaction with the body, on the condition that the marks are still those that were read.
//
// A comparison of bytes (mark less than token) would save the first attempt but would accept values that are not numbers: no
// comparison of etcd can check that a lower value is well-formed.
//
// commit sends a transaction again only after the server has answered that nothing was done. Each time another writer has
// changed the mark in between.
func (m *mark) commit(ctx context.Context, b body) (*clientv3.TxnResponse, error) {
	t, err := m.token(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.spares(b.then, b.otherwise); err != nil {
		return nil, err
	}
	var (
		key  = m.key()
		same = clientv3.Compare(clientv3.Value(key), "=", format(t))
		ops  = b.ops()
		// The mark comes last, because etcd answers the reads of a transaction before its first write with the old revision.
		raise = append(slices.Clone(ops), clientv3.OpPut(key, format(t)))
	)
	for cond, then := same, ops; ; {
		// The read is not serializable: see held.successors.
		resp, err := m.kv.Txn(ctx).If(cond).Then(then...).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return nil, err
		}
		if resp.Succeeded {
			return b.response(resp), nil
		}
		seen, err := m.admit(t, resp.Responses[0].GetResponseRange().GetKvs())
		if err != nil {
			return nil, err
		}
		if seen.write == t {
			cond, then = same, ops
		} else {
			cond, then = clientv3.Compare(clientv3.ModRevision(key), "=", seen.rev), raise
		}
	}
}

// sighting is the marks as they were read.
type sighting struct {
	marks

	rev int64 // the mod revision, which is unique to this state of the key; 0 if it is absent
}

func (m *mark) see(kvs []*mvccpb.KeyValue) (sighting, error) {
	if len(kvs) == 0 {
		return sighting{}, nil
	}
	both, ok := parseMarks(string(kvs[0].Value))
	if !ok {
		return sighting{}, fmt.Errorf("%w at %q: value %s, want a token of %d decimal digits, or two, the second higher",
			ErrMalformedMark, m.key(), clip.Quote(string(kvs[0].Value)), digits)
	}
	return sighting{marks: both, rev: kvs[0].ModRevision}, nil
}

// admit returns the marks that were read, or an error if they refuse a writer's t.
func (m *mark) admit(t fence.Token, kvs []*mvccpb.KeyValue) (sighting, error) {
	seen, err := m.see(kvs)
	switch highest := fence.Token(seen.read); {
	case err != nil:
		return sighting{}, err
	case t < seen.write:
		return sighting{}, &fence.StaleError{Resource: m.resource, Token: t, Highest: seen.write}
	case t < highest:
		return sighting{}, &fence.StaleError{Resource: m.resource, Token: t, Highest: highest, ByReader: true}
	}
	return seen, nil
}

// token returns the token of ctx.
func (m *mark) token(ctx context.Context) (fence.Token, error) {
	t, err := admission.Token(ctx, m.maxEra)
	if err != nil {
		return 0, fmt.Errorf("etcdfence: token for %q: %w", m.resource, err)
	}
	return t, nil
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
			if !op.IsGet() && meets(string(op.KeyBytes()), string(op.RangeBytes()), m.prefix) {
				return fmt.Errorf("etcdfence: a write at %s covers marks, want keys without the prefix %q",
					clip.Quote(string(op.KeyBytes())), m.prefix)
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
	case end == "": // the key alone
		return false
	case key >= prefix: // without the prefix, so after all keys that have it
		return false
	default:
		return end == "\x00" || end > prefix // "\x00" means without an end
	}
}
