package redisfence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
)

const defaultPrefix = "fence:"

// Options are the settings of a [Marks]. The zero value is ready for use.
type Options struct {
	// Prefix and the resource in braces form the key of a mark: the mark of "orders" is at "fence:{orders}". 1 to 1,024
	// bytes of UTF-8 without NUL and braces, default "fence:". No other key may have this prefix.
	Prefix string

	// MaxEra is the highest era that is accepted: 1 to 32767, default [fence.DefaultMaxEra], 15. A token of a higher
	// era is refused before anything is sent; see [fence.Token.CheckEra].
	MaxEra uint16

	// AllowUnnamed makes a resource that follows a lock accept tokens without a lock's name, for example those of
	// [fence.NewContext]. By default they are refused with a [*fence.OtherLockError].
	AllowUnnamed bool

	// Hooks are called when a token was accepted or refused. Default: none.
	Hooks *fence.Hooks
}

// Marks checks tokens against marks in Redis. It has no state in memory: any number of Marks, in any number of
// processes, may share a prefix. It is safe for concurrent use and need not be closed. Create it with [New].
//
// A resource is 1 to 1,024 bytes of UTF-8 without NUL and braces.
type Marks struct {
	client redis.UniversalClient
	opts   Options
}

// New returns the marks for the data that client writes to. The client is a *redis.Client, with or without Sentinel, or
// a *redis.ClusterClient; the caller closes it. New refuses a *redis.Ring: when a server is down, a Ring moves its keys
// to another server, where their marks are missing. New sends nothing. The error names the field, the value and the
// legal range.
func New(client redis.UniversalClient, opts Options) (*Marks, error) {
	opts.Prefix = cmp.Or(opts.Prefix, defaultPrefix)
	if err := fence.CheckMaxEra("redisfence: Options.MaxEra", opts.MaxEra); err != nil {
		return nil, err
	}
	if err := checkClient(client); err != nil {
		return nil, err
	}
	if err := checkName("Options.Prefix", opts.Prefix); err != nil {
		return nil, err
	}
	return &Marks{client: client, opts: opts}, nil
}

// MarkKey returns the key of a resource's mark. The package's documentation describes the value. The key is in the hash
// slot of the key with the resource's name, and of every key with the resource in its first pair of braces. Read it;
// never write to it.
func (m *Marks) MarkKey(resource string) string { return m.opts.Prefix + "{" + resource + "}" }

func checkClient(client redis.UniversalClient) error {
	const want = "want a *redis.Client or a *redis.ClusterClient"
	switch client {
	case nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil):
		return errors.New("redisfence: client is nil, " + want)
	}
	switch client.(type) {
	case *redis.Client, *redis.ClusterClient:
		return nil
	}
	return fmt.Errorf("redisfence: client is a %T, %s", client, want)
}

// admit checks what every call needs before it sends anything, and returns the bid that ctx carries.
func (m *Marks) admit(ctx context.Context, c call) (admission.Bid, error) {
	if m == nil || m.client == nil {
		return c.by, errors.New("redisfence: Marks is nil or zero, want one created by New")
	}
	if err := checkName("resource", c.resource); err != nil {
		return c.by, err
	}
	by, err := c.by.From(ctx, m.opts.MaxEra)
	if err == nil && ctx.Err() != nil {
		if err = ctx.Err(); !errors.Is(context.Cause(ctx), err) {
			err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
		err = fmt.Errorf("nothing was sent: %w", err)
	}
	if err != nil {
		return by, fmt.Errorf("redisfence: %s %q: %w", c.verb, c.resource, err)
	}
	return by, m.checkKeys(c.field, c.keys)
}

// checkKeys refuses the caller's keys if they are empty or have the prefix of the marks.
func (m *Marks) checkKeys(field string, keys []string) error {
	for i, key := range keys {
		switch {
		case key == "":
			return fmt.Errorf("redisfence: %s %d is empty, want a key", field, i)
		case strings.HasPrefix(key, m.opts.Prefix):
			return fmt.Errorf("redisfence: %s %d is %s, want a key without the prefix of the marks, %q",
				field, i, clip.Quote(key), m.opts.Prefix)
		}
	}
	return nil
}

// checkName checks a part of a mark's key. A brace would end the hash tag early or begin another one.
func checkName(field, name string) error {
	return admission.CheckName("redisfence: "+field, name, "{}", " and braces")
}
