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
	"github.com/leasefence/leasefence/examples/internal/timeline"
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
	First   string // the first scene
	NoFence bool   // the ledger does not look at tokens
	Verbose bool   // show every write

	ListLedger bool // in the summary

	Pace   time.Duration // between two lines on a terminal, where a person follows them; for show only
	Linger time.Duration // the same between two scenes
	Before func(ledger http.Handler) http.Handler
}

// Stage is all that a demo has started.
type Stage struct {
	Options
	TL     *timeline.Timeline
	Record *Record
	Client *clientv3.Client // our own, to look at the queue
	Ledger string           // URL
	Nodes  map[string]*Process

	server *etcdserver.Server
	book   *ledger.Ledger
	stop   func() error // of the ledger's server
	scene  int          // where the present scene begins in the record
}

// Run starts etcd and the ledger, plays, and prints a summary. On return nothing is left running. The error says what has not
// happened as it should.
func Run(ctx context.Context, opts Options, out *os.File, play func(context.Context, *Stage) error) error {
	// The children are started here, and end with the thread that has started them should this process be killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A reader that goes away (leader | head) or a terminal that does ends the run like Ctrl-C, not the process at once.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	s := &Stage{Options: opts, TL: timeline.New(out, opts.Pace, fail), Record: newRecord(), Nodes: map[string]*Process{}}
	err := s.run(ctx, play)
	if errors.Is(err, errChecks) || err == nil {
		return err
	}
	s.TL.Flush()
	return fmt.Errorf("failed in the scene %q: %w", s.TL.Step(), err)
}

func (s *Stage) run(ctx context.Context, play func(context.Context, *Stage) error) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	s.TL.Header()
	s.TL.Begin(s.First)
	if err := s.open(ctx); err != nil {
		return err
	}
	if err := play(ctx, s); err != nil {
		return err
	}
	return s.conclude(ctx)
}

// open starts etcd and the ledger.
func (s *Stage) open(ctx context.Context) (err error) {
	if s.server, err = etcdserver.Start(ctx, s.Name); err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	s.TL.Add(timeline.Etcd, 0, timeline.Plain, "runs inside this program, at "+s.Endpoint())
	s.Client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	if s.book, err = ledger.Open(ctx, !s.NoFence, s.claimed, s.written); err != nil {
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
		s.TL.Add(timeline.Ledger, 0, timeline.Bad, "is an empty SQLite database that does NOT look at tokens: -no-fence")
	} else {
		s.TL.Add(timeline.Ledger, 0, timeline.Plain, "is an empty SQLite database that looks at the token of every write")
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

// Begin begins a scene.
func (s *Stage) Begin(ctx context.Context, title string) error {
	if s.TL.Terminal() {
		select {
		case <-time.After(s.Linger):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.scene = s.Record.Len()
	s.TL.Begin(title)
	return nil
}
