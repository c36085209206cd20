// Command leasefence runs commands under locks on etcd, and shows and frees locks:
//
//	leasefence lock jobs/nightly -- backup --all
//	leasefence ls jobs/
//
// "leasefence help" has the commands, with examples, the flags, which are etcdctl's, and the exit codes. "lock" does what
// "etcdctl lock NAME CMD" does, and excludes it on the same name, but the command does not run on without the lock, and learns
// its fencing token.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// The exit codes; see exitCodes.
const (
	exitFailed      = 1
	exitUsage       = 64
	exitLost        = 74
	exitNotObtained = 75
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128
)

const exitCodes = `Exit codes:
  0      done; of lock and elect: that of CMD, as every code that is not below
  1      failed: etcd does not answer or refuses; doctor has found a FAIL
  64     wrong usage; nothing was done
  74     lock: the lock was lost while CMD ran, however that ended
  75     lock, elect: not obtained: held by somebody else (--try, --wait), or etcd does not answer or refuses;
         release: nobody holds it, or not with that token, or it was not confirmed
  126    CMD cannot be executed
  127    CMD was not found
  128+n  CMD died of signal n, or signal n came while leasefence waited
`

// exitError ends leasefence with a code of its own.
type exitError struct {
	code int
	err  error // nil: what there is to say has been printed
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }
func (e *exitError) Unwrap() error { return e.err }

// failed is err as an outcome of a command that has begun.
func failed(err error) error {
	if _, ok := errors.AsType[*exitError](err); ok || err == nil {
		return err
	}
	return &exitError{exitFailed, err}
}

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

func main() {
	args := make([]string, 0, len(os.Args))
	for _, arg := range os.Args[1:] {
		args = append(args, strings.Clone(arg))
	}
	hidePasswords(os.Args)
	os.Exit(newApp().run(args))
}
