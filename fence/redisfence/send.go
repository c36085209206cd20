package redisfence

import (
	"context"

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
}

func (m *Marks) run(ctx context.Context, c call) (any, error) {
	by, err := m.admit(ctx, c)
	if err != nil {
		return nil, err
	}
	anyLock := by.Moves || by.Lock == "" && m.opts.AllowUnnamed
	reply, err := m.eval(ctx, c, append([]string{m.MarkKey(c.resource)}, c.keys...),
		append([]any{by.Token.String(), by.Lock, flag(anyLock)}, c.args...))
	payload, err := m.answer(c, by, reply, err)
	m.opts.Hooks.Tell(ctx, by.Access(c.resource), err)
	return payload, err
}

// flag is an argument of luaAdmit.
func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}

// once is a command that the client must not send again after a lost answer. This holds for a claim too: the
// server may refuse the repetition although the claim is done.
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
// text, since a newer token can arrive in between.
func (m *Marks) eval(ctx context.Context, c call, keys []string, args []any) (any, error) {
	send := func(cmd *redis.Cmd) (any, error) {
		_ = m.client.Process(ctx, once{cmd}) // cmd has the error
		return cmd.Result()
	}
	reply, err := send(newCmd(ctx, "evalsha", c.script.sha, keys, args))
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = send(newCmd(ctx, "eval", c.script.source, keys, args))
	}
	return reply, err
}
