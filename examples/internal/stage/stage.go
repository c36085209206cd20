//go:build unix

// Package stage runs the demos. It starts etcd, the ledger, and processes of the same program with other arguments. It
// starts, pauses and kills these as an operator would, and knows only their logs and whether they run.
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
	// Patience bounds waits for what takes milliseconds.
	Patience = 10 * time.Second
	// glance is the pause between two looks of Until.
	glance = 10 * time.Millisecond
)

// Options of a demo.
type Options struct {
	Name    string                                 // of the program
	NoFence bool                                   // the ledger does not check tokens
	Limit   time.Duration                          // of the whole run
	Before  func(ledger http.Handler) http.Handler // wraps the ledger's handler; nil: none
}

// Stage has everything that a demo has started.
type Stage struct {
	Options
	Context context.Context     //nolint:containedctx // bounds all steps, so that a play is a plain list of them
	Client  *clientv3.Client    // the demo's own, to look at the queue
	Ledger  string              // URL of the ledger
	Nodes   map[string]*Process // by ID

	*printer
	record *record
	server *etcdserver.Server
	book   *ledger.Ledger
	stop   func() error // stops the ledger's server
	title  string       // title of the present scene
	scene  int          // where the present scene begins in the record
	err    error        // error of the step that has failed
}

// Run starts etcd and the ledger, plays, and prints a summary. On return nothing is left running. The error says what
// did not happen as it should.
func Run(ctx context.Context, opts Options, out *os.File, play func(*Stage)) error {
	// Linux kills the processes when the thread that has started them ends; see attributes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// If the reader of the output (leader | head) or the terminal goes away, the run ends with its clean-up, as after
	// Ctrl-C.
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
		s.now(inLedger, 0, bad, "is an empty SQLite database that does NOT check tokens: -no-fence")
	} else {
		s.now(inLedger, 0, plain, "is an empty SQLite database that checks the token of every write")
	}
	return nil
}

// Endpoint is etcd's address.
func (s *Stage) Endpoint() string { return s.server.Endpoint() }

// close ends everything that open and play have started.
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
		_ = s.Client.Close() // the error only says that the connection's context has ended
	}
	if s.server != nil {
		errs = append(errs, s.server.Stop())
	}
	return errors.Join(errs...)
}
