package redisfence

import (
	"encoding"
	"fmt"
	"reflect"
	"time"

	"github.com/leasefence/leasefence/internal/clip"
)

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
