//go:build unix

// Package stage is what the demos stand on: an etcd, the ledger, and processes that are started, paused and killed as an
// operator would, this program with other arguments. It knows of them what an operator does: their logs and their signals.
package stage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/etcdserver"
	"github.com/leasefence/leasefence/examples/internal/ledger"
)

const (
	// TTL is the shortest that an etcd server with its default election timeout grants.
	TTL = 2 * time.Second
	// Patience bounds what takes milliseconds.
	Patience = 10 * time.Second
	// glance is the time between two looks at what changes soon.
	glance = 10 * time.Millisecond
)

// Options of a demo.
type Options struct {
	Name    string // of the program
	NoFence bool   // the ledger does not look at tokens
	Limit   time.Duration
	Before  func(ledger http.Handler) http.Handler // what requests to the ledger go through; nil: nothing
}

// Stage is all that a demo has started.
type Stage struct {
	Options
	Context context.Context  //nolint:containedctx // of the play, which is a list of steps
	Client  *clientv3.Client // our own, to look at the queue
	Ledger  string           // URL
	Nodes   map[string]*Process

	*printer
	record *record
	server *etcdserver.Server
	book   *ledger.Ledger
	stop   func() error // of the ledger's server
	title  string       // of the present scene
	scene  int          // where it begins in the record
	err    error        // of the step that has failed
}

// Run starts etcd and the ledger, plays, and prints a summary. On return nothing is left running. The error says what has not
// happened as it should.
func Run(ctx context.Context, opts Options, out *os.File, play func(*Stage)) error {
	// The children are started here, and end with the thread that has started them should this process be killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A reader that goes away (leader | head) or a terminal that does ends the run like Ctrl-C, not the process at once.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, opts.Limit, fmt.Errorf("the run took longer than %v", opts.Limit))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	s := &Stage{
		Options: opts, Context: ctx, Nodes: map[string]*Process{}, printer: newPrinter(out, fail), record: newRecord(), title: "start",
	}
	err := s.run(play)
	if errors.Is(err, errChecks) || err == nil {
		return err
	}
	return fmt.Errorf("failed in the scene %q: %w", s.title, err)
}

func (s *Stage) run(play func(*Stage)) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	s.note(dim, "%8s  %-10s %5s  %s", "time", "process", "token", "what happened")
	if err := s.open(); err != nil {
		return err
	}
	if play(s); s.err != nil {
		return s.err
	}
	return s.conclude()
}

// open starts etcd and the ledger.
func (s *Stage) open() (err error) {
	if s.server, err = etcdserver.Start(s.Context, s.Name); err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	s.now(inEtcd, 0, plain, "runs inside this program, at %s", s.Endpoint())
	s.Client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	if s.book, err = ledger.Open(s.Context, !s.NoFence, s.claimed, s.written); err != nil {
		return err
	}
	handler, err := s.book.Handler()
	if err != nil {
		return err
	}
	if s.Before != nil {
		handler = s.Before(handler)
	}
	if s.Ledger, s.stop, err = ledger.Serve(handler); err != nil {
		return fmt.Errorf("serve the ledger: %w", err)
	}
	if s.NoFence {
		s.now(inLedger, 0, bad, "is an empty SQLite database that does NOT look at tokens: -no-fence")
	} else {
		s.now(inLedger, 0, plain, "is an empty SQLite database that looks at the token of every write")
	}
	return nil
}

// Endpoint is etcd's.
func (s *Stage) Endpoint() string { return s.server.Endpoint() }

// close ends what is left.
func (s *Stage) close() error {
	var errs []error
	for _, p := range s.Nodes {
		p.kill()
	}
	if s.stop != nil {
		errs = append(errs, s.stop())
	}
	if s.book != nil {
		errs = append(errs, s.book.Close())
	}
	if s.Client != nil {
		_ = s.Client.Close() // the error says that the connection's context has ended
	}
	if s.server != nil {
		errs = append(errs, s.server.Stop())
	}
	return errors.Join(errs...)
}
