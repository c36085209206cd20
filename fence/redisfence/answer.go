package redisfence

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
)

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
