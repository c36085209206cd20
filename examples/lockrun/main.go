//go:build unix

// Command lockrun runs a command while it holds a lock, for instance a cron job that is on several machines:
//
//	lockrun -endpoints 10.0.0.1:2379,10.0.0.2:2379 jobs/nightly -- backup --all
//
// It does what "etcdctl lock NAME CMD" does, and excludes it on the same name, but the command does not run on
// without the lock, and learns its fencing token.
//
// The command has lockrun's standard input, output and error. In its environment are LEASEFENCE_TOKEN, the fencing
// token, in decimal, which it should hand to whatever it changes; LEASEFENCE_LOCK, the lock's name; and
// LEASEFENCE_KEY, its key in etcd. SIGINT, SIGTERM and SIGHUP are passed on to it. It is a process group of its
// own, and a signal goes to all of the group.
//
// If the lock is lost for want of renewals, the command gets SIGTERM and, if it has not ended after -grace, SIGKILL.
// The grace is taken off the local deadline, so all of that is over before etcd lets anybody else have the lock.
// If the lease was revoked or the key deleted, somebody else may have the lock already, and it gets SIGKILL at once.
//
// # Exit codes
//
//	code   meaning
//	0-125  the command's own
//	64     wrong usage; nothing was run
//	74     the lock was lost while the command ran, however that ended
//	75     the lock was not obtained: held by somebody else (-wait=false), or etcd does not answer or refuses
//	126    the command cannot be executed
//	127    the command was not found
//	128+n  the command died of signal n, or signal n came while lockrun waited for the lock
//
// The command should not use 64, 74 and 75 itself.
//
// # Limits
//
// What the command leaves behind in the background is not waited for, and what moves to another process group is
// not reached by signals. If lockrun itself is killed, Linux kills the command with it; on other systems the command goes on. If
// lockrun is stopped (SIGSTOP) it cannot stop the command: only the token at the resource helps then.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/examples/internal/etcdflags"
)

// The exit codes that are lockrun's own; see above.
const (
	exitUsage       = 64
	exitLost        = 74
	exitNotObtained = 75
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128
)

const usage = `usage: lockrun [flags] NAME -- CMD [ARG...]
  -endpoints list  etcd's, comma separated (default $LOCKRUN_ENDPOINTS, or else 127.0.0.1:2379)
  -ttl duration    how long the lock outlives a lockrun that has died, 2s or more (default 10s)
  -grace duration  from SIGTERM to SIGKILL when renewals fail, up to a fifth of -ttl (default a tenth)
  -wait=false      give up at once if the lock is held
  -user name       etcd's user, with -password-file: a file with its password
  -cacert file     authority of etcd's certificate, and -cert and -key: this client's own; each turns TLS on
`

// exitError ends lockrun with a code of its own.
type exitError struct {
	code int
	err  error // nil: the command has printed its own error
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }
func (e *exitError) Unwrap() error { return e.err }

type config struct {
	etcd       clientv3.Config
	ttl, grace time.Duration
	wait       bool
	name       string
	command    []string
}

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	exit, ok := errors.AsType[*exitError](err)
	if !ok {
		exit = &exitError{1, err}
	}
	if exit.err != nil {
		fmt.Fprintln(os.Stderr, "lockrun:", exit.err)
	}
	os.Exit(exit.code)
}

func run(args []string) error {
	c, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return nil
	}
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("%w\n%s", err, usage)}
	}
	return lockAndRun(c)
}

func parse(args []string) (config, error) {
	endpoints := "127.0.0.1:2379"
	if text, ok := os.LookupEnv("LOCKRUN_ENDPOINTS"); ok {
		endpoints = text
	}
	var c config
	var etcd etcdflags.Flags
	flags := flag.NewFlagSet("lockrun", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&endpoints, "endpoints", endpoints, "")
	flags.DurationVar(&c.ttl, "ttl", 10*time.Second, "")
	flags.DurationVar(&c.grace, "grace", -1, "")
	flags.BoolVar(&c.wait, "wait", true, "")
	etcd.Register(flags)
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.grace == -1 {
		c.grace = c.ttl / 10
	}
	switch {
	case c.ttl < 2*time.Second:
		return c, fmt.Errorf("-ttl is %v, want 2s or more", c.ttl)
	case c.grace < 0 || c.grace > c.ttl/5: // with the margin, less than a third
		return c, fmt.Errorf("-grace is %v, want 0s to a fifth of -ttl, %v", c.grace, c.ttl/5)
	case endpoints == "":
		return c, errors.New("-endpoints is empty")
	case flags.NArg() < 3 || flags.Arg(1) != "--":
		return c, errors.New("want NAME -- CMD")
	}
	c.name, c.command = flags.Arg(0), flags.Args()[2:]
	var err error
	c.etcd, err = etcd.Config(strings.Split(endpoints, ","))
	return c, err
}
