package redisfence

import (
	"context"
	"errors"
	"fmt"
)

// Claim installs a tenure: it is called once after a grant, before the tenure's first read of the resource, for a mark
// protects nothing until the new token has reached it. Repeating it does no harm.
//
// On success the mark is the context's token, and no older one is accepted from then on by the server that has
// answered. On a refusal the mark is unchanged: the error is a [*fence.StaleError] with the mark as the highest token
// if that is newer, and matches [fence.ErrInvalidToken] if the context carries no token and [ErrMalformedMark] if
// something else has written the mark. It matches [ErrUnknown] if no answer came: the mark may have been raised, and
// Claim may be called again. It matches [ErrNotReplicated] if Options.WaitReplicas is not reached: the mark is raised,
// and the tenure had better not begin.
func (f *Fence) Claim(ctx context.Context, resource string) error {
	// The client may send it again by itself: what is repeated is the same.
	_, err := f.run(ctx, call{verb: "claim", resource: resource, script: claimScript, writeMark: true, repeatable: true})
	return err
}

// Check asks whether the context's token would be accepted now. It raises nothing, and does not tell whether it would
// be accepted later: use it to give up early, and [Fence.Do] to write. The errors are those of [Fence.Claim], without
// ErrNotReplicated.
func (f *Fence) Check(ctx context.Context, resource string) error {
	t, err := f.admission(ctx, "check", resource)
	if err != nil {
		return err
	}
	reply, err := f.eval(ctx, checkScript, true, []string{f.MarkKey(resource)}, []any{t.String()})
	_, err = f.answer("check", resource, t, reply, err)
	return err
}

// Set is [Fence.Do] with one SET of key to value, which takes an expiry off the key.
func (f *Fence) Set(ctx context.Context, resource, key string, value any) error {
	_, err := f.Do(ctx, resource, Command("SET", key, value))
	return err
}

// Do runs 1 to 1,000 commands if the context's token is not older than the mark, and raises a mark that is older. Guard
// and commands are one script, hence one atomic step: nothing else runs in between, and nobody sees a part of it.
// A token that equals the mark is accepted.
//
// It returns the reply of each command, nil for a missing value. An integer above 2^53 is rounded in the reply, not in
// the store: Lua's numbers are doubles.
//
// Nothing is written, and the mark is unchanged, if the error is a refusal; see [Fence.Claim]. If a command fails, the
// error is an [*OpError]: those before it are done, as in MULTI, and those after it are not. If no answer came, the
// error matches [ErrUnknown]: all was done or nothing. The client does not send the commands a second time by itself;
// calling Do again is safe only if they stand being repeated.
func (f *Fence) Do(ctx context.Context, resource string, ops ...Op) ([]any, error) {
	keys, args, err := encodeOps(ops)
	if err != nil {
		return nil, err
	}
	reply, err := f.run(ctx, call{
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

// Run runs a script of the caller's behind the guard, with the rules and the errors of [Fence.Do]: see [NewScript] for
// what it is given. The keys are 0 to 1,000, the arguments 0 to 1,000 of the kinds of [Op]. It returns what the body
// returns, as the client decodes it: Lua's nil and false are nil, a number loses its fraction.
//
// If the body ends in an error, what it wrote before that is done. Its error is wrapped as the client returns it.
func (f *Fence) Run(ctx context.Context, resource string, script *Script, keys []string, args ...any) (any, error) {
	if script == nil || script.source == "" {
		return nil, errors.New("redisfence: script is nil or zero, want one that NewScript has made")
	}
	if len(keys) > maxOps {
		return nil, fmt.Errorf("redisfence: keys: there are %d, want 0 to %d", len(keys), maxOps)
	}
	if len(args) > maxArgs {
		return nil, fmt.Errorf("redisfence: args: there are %d, want 0 to %d", len(args), maxArgs)
	}
	encoded, err := encodeArgs(args)
	if err != nil {
		return nil, fmt.Errorf("redisfence: run: %w", err)
	}
	return f.run(ctx, call{verb: "run", resource: resource, script: script, field: "key", keys: keys, args: encoded})
}
