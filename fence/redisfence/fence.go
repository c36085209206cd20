package redisfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/leasefence/leasefence/fence"
)

const (
	defaultPrefix      = "fence:"
	defaultWaitTimeout = time.Second

	maxName         = 1024 // bytes of a resource, and of the prefix
	maxWaitReplicas = 1000
	maxWaitTimeout  = time.Minute
)

// Options are the settings of a [Fence]. The zero value is ready for use.
type Options struct {
	// Prefix is put before a resource in braces to make the mark's key: "orders" has its mark at "fence:{orders}".
	// 1 to 1,024 bytes of UTF-8 without NUL and braces. Nothing else may be below it. Default "fence:".
	Prefix string

	// WaitReplicas has Claim, Set, Do and Run wait until so many replicas have acknowledged the mark and the writes:
	// 0 to 1,000, default 0. It makes the loss by a fail-over less likely and does not exclude it; see the package.
	WaitReplicas int

	// WaitTimeout bounds that wait: whole milliseconds, 1ms to 1m, below the client's ReadTimeout. Default 1s. It means
	// nothing without WaitReplicas.
	WaitTimeout time.Duration
}

// Fence checks tokens against marks in Redis. It has no state of its own: any number of them, in any number of
// processes, may share the marks below a prefix. A Fence is safe for concurrent use, and there is nothing to close.
// Make it with [New].
//
// A resource is 1 to 1,024 bytes of UTF-8 without NUL and braces.
type Fence struct {
	client redis.UniversalClient
	opts   Options
}

// New returns a fence for the data that client writes to: a *redis.Client, with or without Sentinel, or a
// *redis.ClusterClient, which stays the caller's to close. A *redis.Ring is refused: it moves keys to another
// server when one is down, where their marks are missing. Nothing is sent. The error names the field, the value and
// the legal range.
func New(client redis.UniversalClient, opts Options) (*Fence, error) {
	if opts.Prefix == "" {
		opts.Prefix = defaultPrefix
	}
	if opts.WaitTimeout == 0 {
		opts.WaitTimeout = defaultWaitTimeout
	}
	readTimeout, err := checkClient(client)
	if err != nil {
		return nil, err
	}
	if err := checkName("Options.Prefix", opts.Prefix); err != nil {
		return nil, err
	}
	if opts.WaitReplicas < 0 || opts.WaitReplicas > maxWaitReplicas {
		return nil, fmt.Errorf("redisfence: Options.WaitReplicas is %d, want 0 to %d", opts.WaitReplicas, maxWaitReplicas)
	}
	if t := opts.WaitTimeout; t < time.Millisecond || t > maxWaitTimeout || t%time.Millisecond != 0 {
		return nil, fmt.Errorf("redisfence: Options.WaitTimeout is %v, want whole milliseconds, 1ms to %v", t, maxWaitTimeout)
	}
	// Otherwise the client gives up first, and what is known to be written would be reported as unknown.
	if opts.WaitReplicas > 0 && readTimeout > 0 && opts.WaitTimeout >= readTimeout {
		return nil, fmt.Errorf("redisfence: Options.WaitTimeout is %v, want less than the client's ReadTimeout, %v",
			opts.WaitTimeout, readTimeout)
	}
	return &Fence{client: client, opts: opts}, nil
}

// MarkKey returns the key of a resource's mark. It lies in the hash slot of the key that is named like the resource,
// and of every key that has the resource in its first pair of braces. Read it, never write to it.
func (f *Fence) MarkKey(resource string) string { return f.opts.Prefix + "{" + resource + "}" }

func checkClient(client redis.UniversalClient) (readTimeout time.Duration, err error) {
	switch c := client.(type) {
	case *redis.Client:
		if c != nil {
			return c.Options().ReadTimeout, nil
		}
	case *redis.ClusterClient:
		if c != nil {
			return c.Options().ReadTimeout, nil
		}
	case nil:
	default:
		return 0, fmt.Errorf("redisfence: client is a %T, want a *redis.Client or a *redis.ClusterClient", client)
	}
	return 0, errors.New("redisfence: client is nil, want a *redis.Client or a *redis.ClusterClient")
}

// admission is what every call needs to know before it sends anything.
func (f *Fence) admission(ctx context.Context, verb, resource string) (fence.Token, error) {
	if f == nil || f.client == nil {
		return 0, errors.New("redisfence: Fence is nil or zero, want one that New has made")
	}
	if err := checkName("resource", resource); err != nil {
		return 0, err
	}
	t, ok := fence.FromContext(ctx)
	if !ok {
		return 0, fmt.Errorf("redisfence: token for %q: the context carries none that is valid, "+
			"want 1 to 9223372036854775807, low 48 bits not 0, by fence.NewContext: %w", resource, fence.ErrInvalidToken)
	}
	if err := ctx.Err(); err != nil {
		if cause := context.Cause(ctx); !errors.Is(cause, err) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return 0, fmt.Errorf("redisfence: %s %q: nothing was sent: %w", verb, resource, err)
	}
	return t, nil
}

// checkKeys refuses keys of the caller's that are, or could be, marks.
func (f *Fence) checkKeys(field string, keys []string) error {
	for i, key := range keys {
		switch {
		case key == "":
			return fmt.Errorf("redisfence: %s %d is empty, want a key", field, i)
		case strings.HasPrefix(key, f.opts.Prefix):
			return fmt.Errorf("redisfence: %s %d is %s, want one without the prefix of the marks, %q",
				field, i, excerpt(key), f.opts.Prefix)
		}
	}
	return nil
}

// checkName is for parts of a mark's key. A brace in it would end the hash tag early or begin another.
func checkName(field, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("redisfence: %s is empty, want 1 to %d bytes", field, maxName)
	case len(name) > maxName:
		return fmt.Errorf("redisfence: %s has %d bytes, want 1 to %d", field, len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsAny(name, "\x00{}"):
		return fmt.Errorf("redisfence: %s is %s, want UTF-8 without NUL and braces", field, excerpt(name))
	}
	return nil
}

// excerpt bounds what reaches a log.
func excerpt(s string) string {
	const limit = 24
	if len(s) > limit {
		return fmt.Sprintf("%q…", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}
