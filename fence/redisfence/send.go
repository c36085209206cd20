package redisfence

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/leasefence/leasefence/fence/internal/admission"
)

// call is one guarded script.
type call struct {
	verb, resource string
	script         *Script
	field          string // the name of a key in errors
	keys           []string
	args           []any
	by             admission.Bid
	writeMark      bool // write the mark even if it is unchanged
	readOnly       bool // nothing is written, so there is nothing to replicate
	repeatable     bool // the client may send it again after a lost answer
}

func (m *Marks) run(ctx context.Context, c call) (any, error) {
	by, err := m.admit(ctx, c)
	if err != nil {
		return nil, err
	}
	// WAIT covers only the writes of its own connection. An attempt whose answer was lost may have written the mark on
	// another connection, so this call writes it again.
	writeMark := c.writeMark || m.opts.WaitReplicas > 0
	anyLock := by.Moves || by.Lock == "" && m.opts.AllowUnnamed
	reply, wait, err := m.eval(ctx, c, append([]string{m.MarkKey(c.resource)}, c.keys...),
		append([]any{by.Token.String(), flag(writeMark), by.Lock, flag(anyLock)}, c.args...))
	payload, err := m.answer(c, by, reply, err)
	m.opts.Hooks.Tell(ctx, by.Access(c.resource), err)
	if err != nil || wait == nil {
		return payload, err
	}
	if err := m.replicated(wait); err != nil {
		return nil, fmt.Errorf("redisfence: %s %q: %w", c.verb, c.resource, err)
	}
	return payload, nil
}

// flag is an argument of luaAdmit.
func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}

// once is a command that the client must not send again after a lost answer.
type once struct{ *redis.Cmd }

// NoRetry makes the client send the command at most once.
func (once) NoRetry() bool { return true }

// newCmd returns a command to send.
func newCmd(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, name, script, len(keys))
	for _, key := range keys {
		line = append(line, key)
	}
	cmd := redis.NewCmd(ctx, append(line, args...)...)
	cmd.SetFirstKeyPos(3) // the client of a cluster selects the server by this key
	return cmd
}

// eval sends the script's hash, and then its text if the server does not know the hash. The guard runs again with the
// text, since a newer token can arrive in between. The result of WAIT is nil if eval does not wait for replicas.
func (m *Marks) eval(ctx context.Context, c call, keys []string, args []any) (any, *redis.IntCmd, error) {
	send, err := m.sender(ctx, c, keys[0])
	if err != nil {
		return nil, nil, err
	}
	cmd := newCmd(ctx, "evalsha", c.script.sha, keys, args)
	wait := send(cmd)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = newCmd(ctx, "eval", c.script.source, keys, args)
		wait = send(cmd)
	}
	return cmd.Val(), wait, cmd.Err()
}

// sender returns a function that sends a command and stores the answer or the error in it. With WaitReplicas, a
// pipeline sends WAIT on the same connection.
func (m *Marks) sender(ctx context.Context, c call, key string) (func(*redis.Cmd) *redis.IntCmd, error) {
	wrap := func(cmd *redis.Cmd) redis.Cmder {
		if c.repeatable {
			return cmd
		}
		return once{cmd}
	}
	if m.opts.WaitReplicas == 0 || c.readOnly {
		return func(cmd *redis.Cmd) *redis.IntCmd {
			_ = m.client.Process(ctx, wrap(cmd)) // cmd has the error
			return nil
		}, nil
	}
	node, err := m.node(ctx, key)
	if err != nil {
		return nil, err
	}
	return func(cmd *redis.Cmd) *redis.IntCmd {
		pipe := node.Pipeline()
		_ = pipe.Process(ctx, wrap(cmd)) // Process only appends; Exec sets the error of each command
		wait := redis.NewIntCmd(ctx, "wait", m.opts.WaitReplicas, m.opts.WaitTimeout.Milliseconds())
		_ = pipe.Process(ctx, wait)
		_, _ = pipe.Exec(ctx)
		if c, ok := m.client.(*redis.ClusterClient); ok && moved(cmd.Err()) {
			c.ReloadState(ctx) // nothing was done; the next call goes to the right server
		}
		return wait
	}, nil
}

// node returns the client of the server that has the key. WAIT has no key by which the client of a cluster could select
// it.
func (m *Marks) node(ctx context.Context, key string) (*redis.Client, error) {
	if c, ok := m.client.(*redis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return m.client.(*redis.Client), nil
}

func (m *Marks) replicated(wait *redis.IntCmd) error {
	n, err := wait.Result()
	if err != nil {
		return fmt.Errorf("%w: WAIT: %w", ErrNotReplicated, err)
	}
	if n < int64(m.opts.WaitReplicas) {
		return fmt.Errorf("%w: %d of %d replicas have acknowledged within %v",
			ErrNotReplicated, n, m.opts.WaitReplicas, m.opts.WaitTimeout)
	}
	return nil
}
