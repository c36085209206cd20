package redisfence

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// call is one guarded script.
type call struct {
	verb, resource string
	script         *Script
	field          string // what an error about a key names
	keys           []string
	args           []any
	writeMark      bool // also if it is the token already
	repeatable     bool // by the client, if an answer is lost
}

func (f *Fence) run(ctx context.Context, c call) (any, error) {
	t, err := f.admission(ctx, c.verb, c.resource)
	if err != nil {
		return nil, err
	}
	if err := f.checkKeys(c.field, c.keys); err != nil {
		return nil, err
	}
	// WAIT promises something of the writes of its own connection only, as documented. A mark that another connection has
	// written, in an attempt whose answer was lost, counts once this one has written it too.
	flag := "0"
	if c.writeMark || f.opts.WaitReplicas > 0 {
		flag = "1"
	}
	keys := append([]string{f.MarkKey(c.resource)}, c.keys...)
	args := append([]any{t.String(), flag}, c.args...)
	if f.opts.WaitReplicas == 0 {
		reply, err := f.eval(ctx, c.script, c.repeatable, keys, args)
		return f.answer(c.verb, c.resource, t, reply, err)
	}
	reply, wait, err := f.evalWait(ctx, c.script, c.repeatable, keys, args)
	payload, err := f.answer(c.verb, c.resource, t, reply, err)
	if err != nil {
		return nil, err
	}
	if err := f.replicated(wait); err != nil {
		return nil, fmt.Errorf("redisfence: %s %q: %w", c.verb, c.resource, err)
	}
	return payload, nil
}

// once is a command that the client must not send again after an answer was lost.
type once struct{ *redis.Cmd }

// NoRetry is asked by the client.
func (once) NoRetry() bool { return true }

// newCmd returns the command and what is to be sent: the same, unless it must not be repeated.
func newCmd(
	ctx context.Context, name, script string, repeatable bool, keys []string, args []any,
) (*redis.Cmd, redis.Cmder) {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, name, script, len(keys))
	for _, key := range keys {
		line = append(line, key)
	}
	cmd := redis.NewCmd(ctx, append(line, args...)...)
	cmd.SetFirstKeyPos(3) // a cluster's client finds the server by it
	if repeatable {
		return cmd, cmd
	}
	return cmd, once{cmd}
}

// eval sends the script's name, and its text if the server does not know that. In between anything may happen: the
// guard is in what is sent second too.
func (f *Fence) eval(ctx context.Context, s *Script, repeatable bool, keys []string, args []any) (any, error) {
	cmd, send := newCmd(ctx, "evalsha", s.sha, repeatable, keys, args)
	err := f.client.Process(ctx, send)
	if unknownScript(err) {
		cmd, send = newCmd(ctx, "eval", s.source, repeatable, keys, args)
		err = f.client.Process(ctx, send)
	}
	return cmd.Val(), err
}

// evalWait does the same with a WAIT behind it, which has to be on the same connection: a pipeline is.
func (f *Fence) evalWait(
	ctx context.Context, s *Script, repeatable bool, keys []string, args []any,
) (any, *redis.IntCmd, error) {
	node, err := f.node(ctx, keys[0])
	if err != nil {
		return nil, nil, err
	}
	send := func(name, script string) (*redis.Cmd, *redis.IntCmd) {
		pipe := node.Pipeline()
		cmd, sent := newCmd(ctx, name, script, repeatable, keys, args)
		_ = pipe.Process(ctx, sent) // It only appends; Exec sets the error of each command.
		wait := redis.NewIntCmd(ctx, "wait", f.opts.WaitReplicas, f.opts.WaitTimeout.Milliseconds())
		_ = pipe.Process(ctx, wait)
		_, _ = pipe.Exec(ctx)
		return cmd, wait
	}
	cmd, wait := send("evalsha", s.sha)
	if unknownScript(cmd.Err()) {
		cmd, wait = send("eval", s.source)
	}
	if c, ok := f.client.(*redis.ClusterClient); ok && moved(cmd.Err()) {
		c.ReloadState(ctx) // nothing was done; the next call asks the right server
	}
	return cmd.Val(), wait, cmd.Err()
}

// node returns the client of the server that has the key: WAIT has no key that a cluster's client could go by.
func (f *Fence) node(ctx context.Context, key string) (*redis.Client, error) {
	if c, ok := f.client.(*redis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return f.client.(*redis.Client), nil
}

func (f *Fence) replicated(wait *redis.IntCmd) error {
	n, err := wait.Result()
	if err != nil {
		return fmt.Errorf("%w: WAIT: %w", ErrNotReplicated, err)
	}
	if n < int64(f.opts.WaitReplicas) {
		return fmt.Errorf("%w: %d of %d replicas have acknowledged within %v",
			ErrNotReplicated, n, f.opts.WaitReplicas, f.opts.WaitTimeout)
	}
	return nil
}

func unknownScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }
