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

// Claim starts a tenure. Call it once after a grant, before the first read of the resource: until then the mark does
// not refuse the predecessor. Repeating it is safe.
//
// On success the mark is the context's token, and the server accepts no older token. The mark is unchanged if the error
// is a [*fence.StaleError], which has the newer mark as the highest token, or a [*fence.OtherLockError] (the resource
// follows another lock, or follows one and the token came without a name), or matches [fence.ErrInvalidToken] (no token
// in the context, or an illegal name of its lock) or [ErrMalformedMark] (this package has not written the mark's
// value). The error matches [ErrUnknown] if no answer came: the mark may have been raised, and Claim may be called
// again.
func (m *Marks) Claim(ctx context.Context, resource string) error {
	_, err := m.run(ctx, call{verb: "claim", resource: resource, script: claimScript})
	return err
}

// Move makes the resource follow the lock of the context, and claims the resource with the context's token; see
// [Marks.Claim]. From then on tokens of the former lock are refused, also in writes that are still under way. Call it
// when the writers have switched to another lock, before they write. Repeating it is safe.
//
// The errors are those of Claim without the [*fence.OtherLockError]. If the token is stale, acquire the lock again, or
// raise the era if the lock is in another cluster. The error also matches [fence.ErrInvalidToken] if the context
// carries no name of a lock, or several.
func (m *Marks) Move(ctx context.Context, resource string) error {
	_, err := m.run(ctx, call{verb: "move", resource: resource, script: claimScript, by: admission.Bid{Moves: true}})
	return err
}

// Check reports whether the context's token would be accepted now. It raises no mark. The answer can be out of date
// when Check returns: use it to give up early, and [Marks.Do] to write. The errors are those of [Marks.Claim].
func (m *Marks) Check(ctx context.Context, resource string) error {
	_, err := m.run(ctx, call{verb: "check", resource: resource, script: checkScript})
	return err
}

// ClaimRead starts the tenure of a reader. Call it once after a grant, before the first read of the resource: until
// then the marks do not refuse a writer that held the lock before, and it could write while the reader reads. Repeating
// it is safe.
//
// On success the server accepts no token of an older writer. The context carries the token of a read lock. The errors
// are those of [Marks.Claim]; the token is stale if the mark of writers is newer.
func (m *Marks) ClaimRead(ctx context.Context, resource string) error {
	_, err := m.run(ctx, call{verb: "claim to read", resource: resource, script: readScript, by: admission.Bid{Read: true}})
	return err
}

// CheckRead reports whether the context's token of a read lock may still read. Call it after a read, before its result
// is used: if it accepts the token, no newer writer had written before. Unlike [Marks.Check] it raises a lower mark of
// readers, as [Marks.ClaimRead] does, so it also works for a reader that has not claimed. The errors are those of
// [Marks.ClaimRead].
func (m *Marks) CheckRead(ctx context.Context, resource string) error {
	_, err := m.run(ctx, call{verb: "check to read", resource: resource, script: readScript, by: admission.Bid{Read: true}})
	return err
}

// Set is [Marks.Do] with one SET of key to value. SET removes an expiry of the key.
func (m *Marks) Set(ctx context.Context, resource, key string, value any) error {
	_, err := m.Do(ctx, resource, Command("SET", key, value))
	return err
}

// Do runs 1 to 1,000 commands if the context's token is not older than a mark, and raises an older mark. The guard and
// the commands are one script and so one atomic step: nothing else runs in between, and no client sees a part of it. A
// token that equals the mark is accepted.
//
// Do returns the reply of each command, nil for a missing value. Integers above 2^53 are rounded in replies, because
// Lua's numbers are doubles; the stored values are exact.
//
// On a refusal nothing is written and the mark is unchanged; see [Marks.Claim]. If a command fails, the error is an
// [*OpError]: as in MULTI, the commands before it have run; those after it have not. If no answer came, the error
// matches [ErrUnknown]: all commands up to the first that fails have run, or none. The client does not send them
// again. Repeat Do only if the commands are idempotent. A read under the same token does not settle the outcome; see
// the package.
func (m *Marks) Do(ctx context.Context, resource string, ops ...Op) ([]any, error) {
	keys, args, err := encodeOps(ops)
	if err != nil {
		return nil, err
	}
	reply, err := m.run(ctx, call{
		verb: "do", resource: resource, script: opsScript, field: "Key of op", keys: keys, args: args,
	})
	if err != nil {
		return nil, err
	}
	replies, err := opReplies(ops, reply)
	if err != nil {
		return nil, fmt.Errorf("redisfence: do %q: %w", resource, err)
	}
	return replies, nil
}

// Run runs the caller's script after the guard, with the rules and the errors of [Marks.Do]; see [NewScript]. It takes
// 0 to 1,000 keys and 0 to 1,000 arguments of the types of [Op]. It returns the body's result as the client decodes it:
// Lua's nil and false become nil, and a number loses its fraction.
//
// If the body fails, its earlier writes remain. Run wraps the server's error, or the one that the body returned, as with
// redis.error_reply; both match [redis.Error].
func (m *Marks) Run(ctx context.Context, resource string, script *Script, keys []string, args ...any) (any, error) {
	if script == nil || script.source == "" {
		return nil, errors.New("redisfence: script is nil or zero, want one created by NewScript")
	}
	if len(keys) > maxOps {
		return nil, fmt.Errorf("redisfence: keys has %d, want 0 to %d", len(keys), maxOps)
	}
	if len(args) > maxArgs {
		return nil, fmt.Errorf("redisfence: args has %d, want 0 to %d", len(args), maxArgs)
	}
	encoded, err := encodeArgs(args)
	if err != nil {
		return nil, fmt.Errorf("redisfence: run: %w", err)
	}
	return m.run(ctx, call{verb: "run", resource: resource, script: script, field: "key", keys: keys, args: encoded})
}
