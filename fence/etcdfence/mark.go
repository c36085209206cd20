package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
)

// ErrMalformedMark reports that a mark's key has a value that this package does not write. Nothing is accepted for the
// resource until an operator repairs the value: the highest token of a writer that was ever accepted there, in 20
// digits; if a reader's was higher, a space and the reader's. If they are not known, write the highest token of all: it
// refuses the readers that hold the lock now. A space, "@" and the name of the lock that the resource follows come
// last, with the prefix of its sessions. Without a name the resource follows the lock of the next token that has one.
var ErrMalformedMark = errors.New("etcdfence: malformed mark")

// mark is a gate that a key's value controls: it is open to writers whose lock is the one in the value and whose tokens
// are not less than the marks there. Each accepted token raises the marks.
type mark struct {
	kv       clientv3.KV
	opts     Options
	resource string

	// guess is the lock's name that was last seen in the mark. A write without a name needs it to compare the whole
	// value. A guess that is out of date costs one more request.
	guess atomic.Pointer[string]
}

// bid is the token that a context carries, and its lock.
type bid struct {
	token  fence.Token
	read   bool   // token is a reader's
	lock   string // "" if it came without one
	moving bool   // the resource follows its lock from now on
}

func (m *mark) key() string { return m.opts.Prefix + m.resource }

func (m *mark) claim(ctx context.Context) error {
	_, err := m.commit(ctx, body{})
	return err
}

// move claims whatever lock the mark follows, and makes the mark follow the context's.
func (m *mark) move(ctx context.Context) error {
	by, err := m.writer(ctx)
	if err != nil {
		return err
	}
	if by.lock == "" {
		return fmt.Errorf("etcdfence: token for %q: %w: its context has no name of a lock, or several, "+
			"want the context of the lock to follow, or one of fence.WithLock or fence.ForLock", m.resource, fence.ErrInvalidToken)
	}
	by.moving = true
	_, err = m.send(ctx, by, body{})
	return err
}

func (m *mark) check(ctx context.Context) error {
	by, err := m.writer(ctx)
	if err != nil {
		return err
	}
	resp, err := m.kv.Get(ctx, m.key())
	if err != nil {
		return err
	}
	_, err = m.admit(by, resp.Kvs)
	m.tell(ctx, by, err)
	return err
}

// tell reports the outcome of a verb to the hooks.
func (m *mark) tell(ctx context.Context, by bid, err error) {
	m.opts.Hooks.Tell(ctx, fence.Access{Resource: m.resource, Token: by.token, Read: by.read, Lock: by.lock}, err)
}

// read accepts a reader that is not older than the write mark, and raises a lower read mark. The condition is that the
// marks are still those that were read: another reader, a writer or a Move may have come in between, and the
// transaction must not lower their marks.
func (m *mark) read(ctx context.Context) error {
	by, err := m.reader(ctx)
	if err != nil {
		return err
	}
	err = m.raise(ctx, by)
	m.tell(ctx, by, err)
	return err
}

func (m *mark) raise(ctx context.Context, by bid) error {
	key := m.key()
	get, err := m.kv.Get(ctx, key)
	if err != nil {
		return err
	}
	for kvs := get.Kvs; ; {
		seen, err := m.admit(by, kvs)
		if err != nil {
			return err
		}
		next := seen.raised(by)
		if next == seen.marks {
			return nil
		}
		resp, err := m.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", seen.rev)).
			Then(clientv3.OpPut(key, next.String())).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return err
		}
		if resp.Succeeded {
			return nil
		}
		kvs = resp.Responses[0].GetResponseRange().GetKvs()
	}
}

func (m *mark) commit(ctx context.Context, b body) (*clientv3.TxnResponse, error) {
	by, err := m.writer(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.spares(b.then, b.otherwise); err != nil {
		return nil, err
	}
	return m.send(ctx, by, b)
}

// send sends the body with the condition that the marks are already what this writer leaves. That is true for a tenure
// that has claimed, until a newer reader comes. If it is false, the same transaction reads the marks. If they are
// lower, missing or without a name, send raises them in one transaction with the body, on the condition that they are
// still those that were read.
//
// A comparison of bytes (mark less than token) would save the first attempt but would accept values that are not
// numbers: no comparison of etcd can check that a lower value is well-formed.
//
// send sends another transaction only after the server has answered that nothing was done. Each repetition means that
// somebody else has changed the mark in between.
func (m *mark) send(ctx context.Context, by bid, b body) (_ *clientv3.TxnResponse, err error) {
	defer func() { m.tell(ctx, by, err) }()
	var (
		key   = m.key()
		first = marks{}.raised(by)
		is    = func(v marks) clientv3.Cmp { return clientv3.Compare(clientv3.Value(key), "=", v.String()) }
		ops   = b.ops()
	)
	if guess := m.guess.Load(); guess != nil && by.lock == "" && m.opts.AllowUnnamed {
		first.lock = *guess
	}
	for cond, then := is(first), ops; ; {
		// The read is not serializable: see held.successors.
		resp, err := m.kv.Txn(ctx).If(cond).Then(then...).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return nil, err
		}
		if resp.Succeeded {
			return b.response(resp), nil
		}
		seen, err := m.admit(by, resp.Responses[0].GetResponseRange().GetKvs())
		if err != nil {
			return nil, err
		}
		m.guess.Store(&seen.lock)
		if next := seen.raised(by); next == seen.marks {
			cond, then = is(next), ops
		} else {
			// The mark comes last, because etcd answers the reads of a transaction before its first write with the old
			// revision.
			cond = clientv3.Compare(clientv3.ModRevision(key), "=", seen.rev)
			then = append(slices.Clone(ops), clientv3.OpPut(key, next.String()))
		}
	}
}

// sighting has the marks as they were read.
type sighting struct {
	marks

	rev int64 // the mod revision, which is unique to this state of the key; 0 if it is absent
}

func (m *mark) see(kvs []*mvccpb.KeyValue) (sighting, error) {
	if len(kvs) == 0 {
		return sighting{}, nil
	}
	all, ok := parseMarks(string(kvs[0].Value))
	if !ok {
		return sighting{}, fmt.Errorf("%w at %q: value %s, want a token of %d decimal digits, or two, the second higher, "+
			"and then perhaps %q and the name of a lock", ErrMalformedMark, m.key(), clip.Quote(string(kvs[0].Value)), digits, beforeName)
	}
	return sighting{marks: all, rev: kvs[0].ModRevision}, nil
}

// admit returns the marks that were read, or an error if they refuse the bid. A token without a name that is lower than
// a mark is reported as stale, which is certain, and not as another lock's, which is not.
func (m *mark) admit(by bid, kvs []*mvccpb.KeyValue) (sighting, error) {
	seen, err := m.see(kvs)
	if err != nil {
		return sighting{}, err
	}
	other := seen.lock != "" && by.lock != seen.lock && !by.moving
	switch highest := fence.Token(seen.read); {
	case other && by.lock != "":
	case by.token < seen.write:
		return sighting{}, &fence.StaleError{Resource: m.resource, Token: by.token, Highest: seen.write, Read: by.read}
	case !by.read && by.token < highest:
		return sighting{}, &fence.StaleError{Resource: m.resource, Token: by.token, Highest: highest, ByReader: true}
	case !other || m.opts.AllowUnnamed:
		return seen, nil
	}
	return sighting{}, &fence.OtherLockError{
		Resource: m.resource, Token: by.token, Read: by.read, Lock: by.lock, Follows: seen.lock,
	}
}

// writer returns what a writer's context carries.
func (m *mark) writer(ctx context.Context) (bid, error) {
	t, err := admission.Token(ctx, m.opts.MaxEra)
	return m.bid(ctx, bid{token: t}, err)
}

// reader returns what a reader's context carries.
func (m *mark) reader(ctx context.Context) (bid, error) {
	t, err := admission.ReadToken(ctx, m.opts.MaxEra)
	return m.bid(ctx, bid{token: fence.Token(t), read: true}, err)
}

func (m *mark) bid(ctx context.Context, by bid, err error) (bid, error) {
	if err == nil {
		by.lock, err = admission.Lock(ctx)
	}
	if err != nil {
		return bid{}, fmt.Errorf("etcdfence: token for %q: %w", m.resource, err)
	}
	return by, nil
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
	case end == "": // the key alone
		return false
	case key >= prefix: // without the prefix, so after all keys that have it
		return false
	default:
		return end == "\x00" || end > prefix // "\x00" means without an end
	}
}
