package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
)

// ErrMalformedMark says that the value of a mark's key is not one that this package writes. Nothing is accepted for the
// resource until an operator has put that right.
var ErrMalformedMark = errors.New("etcdfence: malformed mark")

// mark is open to tokens that are not below the value of a key, and raises it.
type mark struct {
	kv       clientv3.KV
	prefix   string // of all marks
	resource string
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

// commit sends the body with the condition that the mark is the token, which it is for all of a tenure that has
// claimed. If it is not, the same transaction has read the mark. One that is lower or absent is raised in one
// transaction with the body, on the condition that it is still the one that was read.
//
// An order of bytes (the mark is less than the token) would save the first attempt, and would accept what is not a
// number: no comparison of etcd's can tell that a lower value is well-formed.
//
// It is sent again only after the server has said that nothing was done; each time somebody else has written the mark
// in between.
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
		// The mark is last: before its first write, reads of a transaction are answered with the revision before.
		raise = append(slices.Clone(ops), clientv3.OpPut(key, format(t)))
	)
	for cond, then := same, ops; ; {
		// The read is never serializable: see held.successors.
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
		if seen.token == t {
			cond, then = same, ops
		} else {
			cond, then = clientv3.Compare(clientv3.ModRevision(key), "=", seen.rev), raise
		}
	}
}

// sighting is a mark as it was read: both are 0 if it is absent.
type sighting struct {
	token fence.Token
	rev   int64 // the mod revision, which no other state of the key ever has
}

// admit is the mark that was read, unless it refuses t.
func (m *mark) admit(t fence.Token, kvs []*mvccpb.KeyValue) (sighting, error) {
	if len(kvs) == 0 {
		return sighting{}, nil
	}
	highest, ok := parse(string(kvs[0].Value))
	if !ok {
		return sighting{}, fmt.Errorf("%w at %q: value %s, want a token of %d decimal digits",
			ErrMalformedMark, m.key(), quote(string(kvs[0].Value)), digits)
	}
	if t < highest {
		return sighting{}, &fence.StaleError{Resource: m.resource, Token: t, Highest: highest}
	}
	return sighting{token: highest, rev: kvs[0].ModRevision}, nil
}

// token is the context's.
func (m *mark) token(ctx context.Context) (fence.Token, error) {
	if t, ok := fence.FromContext(ctx); ok {
		return t, nil
	}
	return 0, fmt.Errorf("etcdfence: token for %q: the context carries none, "+
		"want 1 to 9223372036854775807, low 48 bits not 0, by fence.NewContext: %w", m.resource, fence.ErrInvalidToken)
}

// spares refuses operations that write to the marks.
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
				return fmt.Errorf("etcdfence: a write at %s reaches the marks, want keys without the prefix %q",
					quote(string(op.KeyBytes())), m.prefix)
			}
		}
	}
	return nil
}

// meets reports whether etcd's range [key, end) has a key with the prefix in it, or could have.
func meets(key, end, prefix string) bool {
	switch {
	case strings.HasPrefix(key, prefix):
		return true
	case end == "": // the key alone
		return false
	case key >= prefix: // and without it, so behind all that have it
		return false
	default:
		return end == "\x00" || end > prefix // "\x00" is no end at all
	}
}

// digits is the length of a mark: zeros in front, so that what etcdctl lists and compares is in the order of numbers.
const digits = 20

func format(t fence.Token) string { return fmt.Sprintf("%0*d", digits, int64(t)) }

// parse reads what format has written, and nothing else.
func parse(value string) (fence.Token, bool) {
	if len(value) != digits || strings.Trim(value, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(value, 10, 64)
	t := fence.Token(n)
	return t, err == nil && t.Valid()
}

// quote bounds what reaches a log.
func quote(s string) string {
	const limit = 24
	if len(s) > limit {
		return strconv.Quote(s[:limit]) + "…"
	}
	return strconv.Quote(s)
}
