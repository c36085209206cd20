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
	input := []any{1 + len(c.keys), m.MarkKey(c.resource)}
	for _, key := range c.keys {
		input = append(input, key)
	}
	input = append(append(input, by.Token.String(), by.Lock, anyLock), c.args...)
	reply, err := m.send(ctx, "evalsha", c.script.sha, input)
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // the guard is in the text too, since a newer token can arrive in between
		reply, err = m.send(ctx, "eval", c.script.source, input)
	}
	payload, err := m.answer(c, by, reply, err)
	m.opts.Hooks.Tell(ctx, by.Access(c.resource), err)
	return payload, err
}

// once is a command that the client must not send again after a lost answer. This holds for a claim too: the
// server may refuse the repetition although the claim is done.
type once struct{ *redis.Cmd }

// NoRetry makes the client send the command at most once.
func (once) NoRetry() bool { return true }

// send sends a script, by its hash or its text, with the number of its keys, the keys and the arguments.
func (m *Marks) send(ctx context.Context, name, script string, input []any) (any, error) {
	cmd := redis.NewCmd(ctx, append([]any{name, script}, input...)...)
	_ = m.client.Process(ctx, once{cmd}) // cmd has the error; a cluster's client selects the server by the first key
	return cmd.Result()
}
