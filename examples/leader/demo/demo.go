//go:build unix

// Package demo shows what a service of three processes does when its leaders die, hang, hand over and stop. It starts
// the processes as an operator would, this program with -join, and knows of them what an operator does: their logs,
// their HTTP, their signals. Nothing in them knows of it.
package demo

import (
	"context"
	"errors"
	"fmt"
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
	// ttl is the shortest that an etcd server with its default election timeout grants.
	ttl          = 2 * time.Second
	electionName = "demo/leader"
	// limit bounds the scenes, which take about ten seconds, and twenty on a terminal.
	limit = 60 * time.Second
	// lingering is the time between two scenes on a terminal, where a person follows them. It is for show only.
	lingering = 3 * time.Second
)

// stage is all that the demo has started.
type stage struct {
	opts   Options
	tl     *timeline.Timeline
	record *record

	server *etcdserver.Server
	client *clientv3.Client // our own, to look at the queue
	book   *ledger.Ledger
	door   *door
	url    string // of the ledger
	nodes  map[string]*process

	scene int // where the present scene begins in the record
}

// Run starts everything, plays the scenes or leaves them to a person, and prints a summary. On return nothing is left
// running. The error says what has not happened as it should.
func Run(ctx context.Context, opts Options, out *os.File) error {
	// The children are started here, and end with the thread that has started them should this process be killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A reader that goes away (leader | head) or a terminal that does ends the run like Ctrl-C, not the process at once.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	s := &stage{opts: opts, tl: timeline.New(out, 0, fail), record: newRecord(), door: newDoor(), nodes: map[string]*process{}}
	err := s.run(ctx)
	if errors.Is(err, errChecks) || err == nil {
		return err
	}
	s.tl.Flush()
	return fmt.Errorf("failed in the scene %q: %w", s.tl.Step(), err)
}

func (s *stage) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	s.tl.Header()
	s.tl.Begin("Three processes start")
	if err := s.open(ctx); err != nil {
		return err
	}
	if s.opts.Manual {
		err = s.leaveToPerson(ctx)
	} else {
		err = s.play(ctx)
	}
	if err != nil {
		return err
	}
	return s.conclude(context.WithoutCancel(ctx)) // a person ends the demo by Ctrl-C
}

// open starts etcd and the ledger.
func (s *stage) open(ctx context.Context) (err error) {
	if s.server, err = etcdserver.Start(ctx, "leader", zap.NewNop()); err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	s.tl.Add(timeline.Etcd, 0, timeline.Plain, "runs inside this program, at "+s.server.Endpoint())
	s.client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.server.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	if s.book, err = ledger.Open(ctx, !s.opts.NoFence, s.claimed, s.written); err != nil {
		return err
	}
	handler, err := s.book.Handler()
	if err != nil {
		return err
	}
	var stop func() error
	if s.url, stop, err = ledger.Serve(s.door.before(handler)); err != nil {
		return fmt.Errorf("serve the ledger: %w", err)
	}
	s.door.stop = stop
	if s.opts.NoFence {
		s.tl.Add(timeline.Ledger, 0, timeline.Bad, "is empty and does NOT look at tokens: -no-fence")
	} else {
		s.tl.Add(timeline.Ledger, 0, timeline.Plain, "is empty and looks at the token of every write, at "+s.url)
	}
	return nil
}

// close ends what is left.
func (s *stage) close() error {
	var errs []error
	for _, p := range s.nodes {
		p.kill()
	}
	if s.door.stop != nil {
		errs = append(errs, s.door.stop())
	}
	if s.book != nil {
		errs = append(errs, s.book.Close())
	}
	if s.client != nil {
		_ = s.client.Close() // the error says that the connection's context has ended
	}
	if s.server != nil {
		errs = append(errs, s.server.Stop())
	}
	return errors.Join(errs...)
}

// begin begins a scene.
func (s *stage) begin(ctx context.Context, title string) error {
	if s.tl.Terminal() {
		select {
		case <-time.After(lingering):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.scene = s.record.len()
	s.tl.Begin(title)
	return nil
}
