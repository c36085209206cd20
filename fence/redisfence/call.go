package redisfence

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
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

const (
	maxOps  = 1000
	maxArgs = 1000 // of one op; Lua's unpack is limited to about 8,000
)

// Op is one command of [Marks.Do]: its name, its key as the first argument, and its other arguments. Use [Marks.Run]
// for a command with several keys, such as RENAME.
type Op struct {
	Name string
	Key  string

	// Args are at most 1,000 strings, byte slices, numbers, booleans (sent as 1 and 0), times and pointers to times
	// (RFC 3339), durations (nanoseconds) or values with an encoding.BinaryMarshaler.
	Args []any
}

// Command returns an [Op], for instance Command("HSET", "{orders}:7", "state", "paid").
func Command(name, key string, args ...any) Op { return Op{Name: name, Key: key, Args: args} }

// encodeOps returns the keys and arguments of luaOps.
func encodeOps(ops []Op) ([]string, []any, error) {
	if len(ops) < 1 || len(ops) > maxOps {
		return nil, nil, fmt.Errorf("redisfence: ops has %d commands, want 1 to %d", len(ops), maxOps)
	}
	var (
		keys = make([]string, len(ops))
		args = make([]any, 0, 4*len(ops))
	)
	for i, op := range ops {
		if op.Name == "" {
			return nil, nil, fmt.Errorf("redisfence: op %d: Name is empty, want a command", i)
		}
		if len(op.Args) > maxArgs {
			return nil, nil, fmt.Errorf("redisfence: op %d, %s: Args has %d, want 0 to %d",
				i, clip.Quote(op.Name), len(op.Args), maxArgs)
		}
		keys[i] = op.Key
		args = append(args, op.Name, len(op.Args))
		encoded, err := encodeArgs(op.Args)
		if err != nil {
			return nil, nil, fmt.Errorf("redisfence: op %d, %s: %w", i, clip.Quote(op.Name), err)
		}
		args = append(args, encoded...)
	}
	return keys, args, nil
}

// encodeArgs refuses illegal arguments before anything is sent; the client would refuse them only while sending.
func encodeArgs(args []any) ([]any, error) {
	encoded := make([]any, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case string, []byte, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64, bool,
			time.Time, time.Duration:
			encoded[i] = v
		case encoding.BinaryMarshaler:
			if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && p.IsNil() {
				return nil, fmt.Errorf("argument %d is a nil %T, want a value", i, arg)
			}
			if t, ok := v.(*time.Time); ok {
				encoded[i] = *t // not its binary form
				continue
			}
			b, err := v.MarshalBinary()
			if err != nil {
				return nil, fmt.Errorf("argument %d: %w", i, err)
			}
			encoded[i] = b
		default:
			return nil, fmt.Errorf("argument %d is a %T, want a string, bytes, a number, a bool, a time, a duration or an "+
				"encoding.BinaryMarshaler", i, arg)
		}
	}
	return encoded, nil
}

var (
	// ErrUnknown reports that no answer came: the script ran, did not run, or may still run. To settle the outcome, claim
	// with a newer token and then read; see the package.
	ErrUnknown = errors.New("redisfence: outcome unknown")

	// ErrMalformedMark reports that the mark's key has a value that this package does not write. Nothing is accepted
	// for the resource until an operator repairs the value: the highest token of a writer that was ever accepted there,
	// a space, and the highest of a reader, or 0 if that is not higher. If they are not known, write the highest token of
	// all as the first: it refuses the readers that hold the lock now. The name of the lock to follow may come last; see
	// the package for the form.
	ErrMalformedMark = errors.New("redisfence: malformed mark")
)

// OpError reports that the server refused a command of [Marks.Do]. The mark stays raised. The commands before this one
// ran; those after it did not.
type OpError struct {
	Index   int    // of the command, from 0
	Op      Op     // the command
	Message string // of the server
}

// Error names the command, its key and the server's message.
func (e *OpError) Error() string {
	return fmt.Sprintf("op %d, %s %s: %s", e.Index, clip.Quote(e.Op.Name), clip.Quote(e.Op.Key), e.Message)
}

// bodyError is an error that the body of a [Script] returned or raised. It is an error of the server to the caller, but
// not to the client, which runs a script again after some of the server's errors.
type bodyError string

func (e bodyError) Error() string { return string(e) }

// RedisError makes it a [redis.Error].
func (bodyError) RedisError() {}

// answer returns the result of a script's body, or the reason why the body did not run.
func (m *Marks) answer(c call, by admission.Bid, reply any, err error) (any, error) {
	if err != nil {
		return nil, fmt.Errorf("redisfence: %s %q: %w", c.verb, c.resource, m.explain(c.resource, err))
	}
	parts, _ := reply.([]any)
	if len(parts) == 1 {
		parts = append(parts, nil) // Lua's nil ends an array
	}
	if len(parts) == 2 {
		text, _ := parts[1].(string)
		switch parts[0] {
		case "ok":
			return parts[1], nil
		case "failed":
			return m.answer(c, by, nil, bodyError(text))
		case "stale", "read":
			highest, _ := fence.Parse(text) // the script has found it valid
			return nil, &fence.StaleError{
				Resource: c.resource, Token: by.Token, Highest: highest, Read: by.Read, ByReader: parts[0] == "read",
			}
		case "other":
			return nil, &fence.OtherLockError{Resource: c.resource, Token: by.Token, Read: by.Read, Lock: by.Lock, Follows: text}
		case "malformed":
			return nil, fmt.Errorf("%w at %q: %s, want the token of a writer and that of a reader, 0 if it is not "+
				"higher, and then perhaps the name of a lock",
				ErrMalformedMark, m.MarkKey(c.resource), clip.Quote(text))
		}
	}
	return nil, fmt.Errorf("redisfence: %s %q: %w: unexpected answer of the script: %s",
		c.verb, c.resource, ErrUnknown, clip.Quote(fmt.Sprint(reply)))
}

// explain wraps a lost answer in ErrUnknown. A refusal by the server stays as it is, since its outcome is known.
func (m *Marks) explain(resource string, err error) error {
	if _, ok := errors.AsType[redis.Error](err); !ok {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	text := err.Error()
	if strings.HasPrefix(text, "CROSSSLOT") || strings.Contains(text, "non local key") {
		return fmt.Errorf("a key is not in the hash slot of the mark, %q: "+
			"want the key %q or keys that contain %q: %w", m.MarkKey(resource), resource, "{"+resource+"}", err)
	}
	return err
}

// opReplies splits the answer of luaOps.
func opReplies(ops []Op, answer any) ([]any, error) {
	parts, _ := answer.([]any)
	if len(parts) == 2 {
		failed, _ := parts[0].(int64)
		if replies, ok := parts[1].([]any); ok && failed == 0 && len(replies) == len(ops) {
			return replies, nil
		}
		if message, ok := parts[1].(string); ok && failed >= 1 && failed <= int64(len(ops)) {
			return nil, &OpError{Index: int(failed) - 1, Op: ops[failed-1], Message: message}
		}
	}
	return nil, fmt.Errorf("%w: unexpected answer of the script: %s", ErrUnknown, clip.Quote(fmt.Sprint(answer)))
}
