package etcdfence

import (
	"cmp"
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
	"github.com/leasefence/leasefence/internal/etcd"
)

const defaultPrefix = "fence/"

// Options of [Marks]. The zero value of a field is its default.
type Options struct {
	// Prefix and the resource form the key of a mark: the mark of "orders" is at "fence/orders". 1 to 1,024 bytes of
	// UTF-8 without NUL, default "fence/". No other key may have this prefix.
	Prefix string

	// MaxEra is the highest era that is accepted: 1 to 32767, default [fence.DefaultMaxEra], 15. A token of a higher
	// era is refused before anything is sent; see [fence.Token.CheckEra].
	MaxEra uint16

	// AllowUnnamed makes a resource that follows a lock accept tokens without a lock's name, for example those of older
	// clients; see [fence.WithLock]. By default they are refused with an [*fence.OtherLockError]. Each such write takes one
	// more request, which reads the name.
	AllowUnnamed bool

	// Hooks are called when a token was accepted or refused. Default: none.
	Hooks *fence.Hooks
}

// Marks fences data in etcd whose writers hold their locks elsewhere, for example in another cluster. A key for each
// resource holds the highest token of a writer that was accepted, that of a reader if it is higher, and the name of the
// lock that the resource follows; the package's documentation has the form. Marks only grow and are never deleted.
//
// The context carries the token, see [fence.FromContext] and [fence.ReadFromContext], and the name of its lock, see
// [fence.LockFromContext]. The resource follows the lock of the first token that is accepted with a name. Until
// [Marks.Move] it refuses the tokens of other locks, whatever their numbers.
//
// A resource is 1 to 1,024 bytes of UTF-8 without NUL. Marks is safe for concurrent use, by any number of processes,
// and need not be closed.
type Marks struct {
	kv   clientv3.KV
	opts Options
}

// NewMarks returns the marks with a prefix in kv. It sends nothing. The error names the argument or the option, its
// value and the legal range.
func NewMarks(kv clientv3.KV, opts Options) (*Marks, error) {
	if kv == nil {
		return nil, errors.New("etcdfence: kv is nil, want the KV of an etcd client")
	}
	opts.Prefix = cmp.Or(opts.Prefix, defaultPrefix)
	if err := admission.CheckName("etcdfence: Options.Prefix", opts.Prefix, "", ""); err != nil {
		return nil, err
	}
	if err := fence.CheckMaxEra("etcdfence: Options.MaxEra", opts.MaxEra); err != nil {
		return nil, err
	}
	return &Marks{kv: kv, opts: opts}, nil
}

// Claim starts a tenure. Call it once after a grant, before the first read of the resource: until then the mark does
// not refuse the predecessor. Repeating it is safe.
//
// On success the mark is the context's token or newer, and no older token is accepted. The mark is unchanged if the
// error is a [*fence.StaleError], which has the newer mark as the highest token, or an [*fence.OtherLockError] (the
// resource follows another lock, or follows one and the token came without a name), or matches [fence.ErrInvalidToken]
// (no token in the context, or an illegal name of its lock) or [ErrMalformedMark] (this package has not written the
// mark's value). Any other error wraps the client's: the mark may have been raised, and Claim may be called again.
func (m *Marks) Claim(ctx context.Context, resource string) error {
	return m.raise(ctx, resource, admission.Bid{})
}

// Move makes the resource follow the lock of the context, and claims the resource with the context's token; see
// [Marks.Claim]. From then on tokens of the former lock are refused, also in writes that are still under way. Call it
// when the writers have switched to another lock, before they write. Repeating it is safe.
//
// The errors are those of [Marks.Claim] without the [*fence.OtherLockError]. If the token is stale, acquire the lock
// again, or raise the era if the lock is in another cluster. The error also matches [fence.ErrInvalidToken] if the
// context carries no name of a lock, or several.
func (m *Marks) Move(ctx context.Context, resource string) error {
	return m.raise(ctx, resource, admission.Bid{Moves: true})
}

// Check reports whether the context's token would be accepted now. It reads the mark and does not raise it. The answer
// can be out of date when Check returns: use it to give up early, and [Marks.KV] to write. The errors are those of
// [Marks.Claim].
func (m *Marks) Check(ctx context.Context, resource string) error {
	r, err := m.mark(resource)
	if err != nil {
		return err
	}
	return r.explain(r.check(ctx))
}

// ClaimRead starts the tenure of a reader. Call it once after a grant, before the first read of the resource: until
// then the marks do not refuse a writer that held the lock before, and it could write while the reader reads. Repeating
// it is safe.
//
// On success no token of an older writer is accepted, not even in a write that is still under way. The context carries
// the token of a read lock. The errors are those of [Marks.Claim]; the token is stale if the mark of writers is newer.
// After an error of the client the read mark may have been raised.
func (m *Marks) ClaimRead(ctx context.Context, resource string) error {
	return m.raise(ctx, resource, admission.Bid{Read: true})
}

// CheckRead reports whether the context's token of a read lock may still read. Call it after a read, before its result
// is used: if it accepts the token, no newer writer had written before. Unlike [Marks.Check] it raises a lower mark, as
// [Marks.ClaimRead] does, so it also works for a reader that has not claimed.
func (m *Marks) CheckRead(ctx context.Context, resource string) error {
	return m.raise(ctx, resource, admission.Bid{Read: true})
}

// raise makes a bid without a write to the data.
func (m *Marks) raise(ctx context.Context, resource string, by admission.Bid) error {
	r, err := m.mark(resource)
	if err == nil {
		by, err = r.bid(ctx, by)
	}
	if err != nil {
		return err
	}
	_, err = r.send(ctx, by, body{})
	return r.explain(err)
}

// KV returns a KV for the resource's data, which is any set of keys that its writers agree on. A write is done only if
// no mark is newer than the token in the context and the resource follows its lock, and it raises an older mark in the
// same transaction. One KV serves the tokens of all writers.
//
// The errors of a write are those of [Marks.Claim]; where that leaves the mark unchanged, nothing is written. The KV
// refuses writes to marks, and deletions of ranges that contain marks, before it sends them. The error of Marks.KV
// names the resource and what is legal.
func (m *Marks) KV(resource string) (*KV, error) {
	gate, err := m.mark(resource)
	if err != nil {
		return nil, err
	}
	return &KV{kv: m.kv, gate: gate}, nil
}

func (m *Marks) mark(resource string) (*mark, error) {
	if err := admission.CheckName("etcdfence: resource", resource, "", ""); err != nil {
		return nil, err
	}
	return &mark{kv: m.kv, opts: m.opts, resource: resource}, nil
}

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

// explain names the mark in an error of the client. The other errors name the resource already.
func (m *mark) explain(err error) error {
	for _, named := range [...]error{nil, fence.ErrStale, fence.ErrOtherLock, fence.ErrInvalidToken, ErrMalformedMark} {
		if errors.Is(err, named) {
			return err
		}
	}
	return fmt.Errorf("etcdfence: mark at %q: %w", m.key(), err)
}

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
