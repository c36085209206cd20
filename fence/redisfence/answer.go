package redisfence

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasefence/leasefence/fence"
)

var (
	// ErrUnknown says that no answer came: the script was carried out as a whole, or not at all, or it may still be.
	ErrUnknown = errors.New("redisfence: outcome unknown")

	// ErrNotReplicated says that the script was carried out, and that fewer replicas than Options.WaitReplicas are
	// known to have it: a fail-over may lose the mark and the writes.
	ErrNotReplicated = errors.New("redisfence: not replicated")

	// ErrMalformedMark says that the mark's key holds what this package does not write. Nothing is accepted for the
	// resource until an operator has put that right, with the highest token that was ever accepted.
	ErrMalformedMark = errors.New("redisfence: malformed mark")
)

// OpError says that the server has refused a command of [Fence.Do]. The mark stays raised. The commands before this one
// are done, those after it are not.
type OpError struct {
	Index   int    // of the command, from 0
	Op      Op     // the command
	Message string // of the server
}

// Error names the command, its key and what the server says.
func (e *OpError) Error() string {
	return fmt.Sprintf("op %d, %s %s: %s", e.Index, excerpt(e.Op.Name), excerpt(e.Op.Key), e.Message)
}

// answer returns what the body of a script has answered, or why it has not run.
func (f *Fence) answer(verb, resource string, t fence.Token, reply any, err error) (any, error) {
	if err != nil {
		return nil, fmt.Errorf("redisfence: %s %q: %w", verb, resource, f.explain(resource, err))
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
		case "stale":
			if highest, err := fence.Parse(text); err == nil {
				return nil, &fence.StaleError{Resource: resource, Token: t, Highest: highest}
			}
		case "malformed":
			return nil, fmt.Errorf("%w at %q: %s, want a token, decimal", ErrMalformedMark, f.MarkKey(resource), excerpt(text))
		}
	}
	return nil, fmt.Errorf("redisfence: %s %q: %w: the answer is not one of the guard's: %s",
		verb, resource, ErrUnknown, excerpt(fmt.Sprint(reply)))
}

// explain tells a server's refusal, after which the outcome is known, from an answer that never came.
func (f *Fence) explain(resource string, err error) error {
	if _, ok := errors.AsType[redis.Error](err); !ok {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	text := err.Error()
	if strings.HasPrefix(text, "CROSSSLOT") || strings.Contains(text, "non local key") {
		return fmt.Errorf("in a cluster every key has to lie in the slot of the mark, %q: "+
			"use the key %q itself, or keys with %q in them: %w", f.MarkKey(resource), resource, "{"+resource+"}", err)
	}
	return err
}

// opReplies takes the answer of luaOps apart.
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
	return nil, fmt.Errorf("%w: the answer is not one of the guard's: %s", ErrUnknown, excerpt(fmt.Sprint(answer)))
}

// moved reports whether another server has the key by now.
func moved(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK ")
}
