package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	defaultPrefix = "fence/"
	maxName       = 1024 // bytes of a resource, and of the prefix
)

// Options of [Marks]. The zero value of a field is its default.
type Options struct {
	// Prefix is put before each resource to make the mark's key: "orders" has its mark at "fence/orders". UTF-8 without
	// NUL, at most 1,024 bytes. Nothing else may be below it. Default "fence/".
	Prefix string
}

// Marks fences data in etcd whose writers hold their locks elsewhere, for instance in another cluster. For each
// resource a key holds the mark: the highest token that has been accepted, as 20 decimal digits. A mark only grows and
// is never deleted.
//
// The token is the context's; see [fence.FromContext]. A resource is 1 to 1,024 bytes of UTF-8 without NUL. Marks is
// safe for concurrent use, by any number of processes, and there is nothing to close.
type Marks struct {
	kv     clientv3.KV
	prefix string
}

// NewMarks returns the marks below a prefix in kv, which is used as it is. The error names the argument or the option
// that is wrong, its value and the legal range. Nothing is sent.
func NewMarks(kv clientv3.KV, opts Options) (*Marks, error) {
	if kv == nil {
		return nil, errors.New("etcdfence: kv is nil, want an etcd client's")
	}
	if opts.Prefix == "" {
		opts.Prefix = defaultPrefix
	}
	if err := checkName("Options.Prefix", opts.Prefix); err != nil {
		return nil, err
	}
	return &Marks{kv: kv, prefix: opts.Prefix}, nil
}

// Claim installs a tenure: it is called once after a grant, before the tenure's first read of the resource, for a mark
// protects nothing until the new token has reached it. Repeating it does no harm.
//
// On success the mark is at least the context's token, and no older token is accepted from then on. The error is a
// [*fence.StaleError] with the mark as the highest token if the mark is greater; it matches [fence.ErrInvalidToken] if
// the context carries no token, and [ErrMalformedMark] if something else has written the mark. The mark is unchanged
// then. Any other error is the client's as it is: the mark may have been raised, and Claim may be called again.
func (m *Marks) Claim(ctx context.Context, resource string) error {
	k, err := m.KV(resource)
	if err != nil {
		return err
	}
	return k.Claim(ctx)
}

// Check looks whether the context's token would be accepted now: it reads the mark and raises nothing. Its answer can
// be out of date by the time it returns: use it to give up early, and [Marks.KV] to write. The errors are those of
// [Marks.Claim].
func (m *Marks) Check(ctx context.Context, resource string) error {
	k, err := m.KV(resource)
	if err != nil {
		return err
	}
	return k.Check(ctx)
}

// KV returns a KV for the resource's data, which is any set of keys that its writers agree on. A write is done only if
// the mark is not greater than the token that its context carries, and raises a mark that is lower, in one transaction.
// Nothing is cached: a KV may be kept, and serves every token.
//
// The errors are those of [Marks.Claim]; if it is one of those that are named there, nothing is written. A write to the
// marks themselves is refused before it is sent, also a deletion of a range that has them in it. The error of KV itself
// names the resource and what is legal.
func (m *Marks) KV(resource string) (*KV, error) {
	if err := checkName("resource", resource); err != nil {
		return nil, err
	}
	return &KV{kv: m.kv, gate: &mark{kv: m.kv, prefix: m.prefix, resource: resource}}, nil
}

func checkName(field, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("etcdfence: %s is empty, want 1 to %d bytes", field, maxName)
	case len(name) > maxName:
		return fmt.Errorf("etcdfence: %s has %d bytes, want 1 to %d", field, len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("etcdfence: %s is %q, want UTF-8 without NUL", field, name)
	}
	return nil
}
