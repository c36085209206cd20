package etcdfence

import (
	"cmp"
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
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
// mark's value). Any other error is the client's: the mark may have been raised, and Claim may be called again.
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
	return r.check(ctx)
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
	return err
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
