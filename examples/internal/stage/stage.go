//go:build unix

// Package stage runs the demos. It starts etcd, the ledger, and processes of the same program with other arguments, and
// prints what they say. A demo does to the processes what an operator can do, and waits for what they print.
package stage

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/ledger"
)

const (
	// TTL is short, since a demo waits until leases expire, and long enough for a busy machine to renew them in time.
	TTL = 5 * time.Second

	patience = time.Minute // bounds every wait, far longer than anything takes
)

// date is what package log writes before a line.
var date = regexp.MustCompile(`^\d{4}/\d\d/\d\d [\d:]+ `)

// Stage has everything that a demo has started.
type Stage struct {
	Context context.Context //nolint:containedctx // so that a demo is a plain list of steps
	Etcd    string          // address
	Ledger  string          // URL

	out     *os.File
	colours bool // out is a terminal
	began   time.Time
	nodes   map[string]*node
	running sync.WaitGroup // the processes' readers
	title   string         // of the present scene
	first   int            // line of the present scene
	err     error          // of the step that has failed

	mu    sync.Mutex // guards the fields below, and writes to out
	lines []line
	grown chan struct{} // closed when there is another line
}

// line is a line of the output.
type line struct{ who, text string }

// node is a process of the demo.
type node struct {
	process *os.Process
	stdin   io.Writer
}

// Run starts etcd and the ledger, plays the scenes and prints the ledger. On return nothing is left running. The error
// says what did not happen as it should.
func Run(out *os.File, noFence bool, play func(*Stage)) (err error) {
	// SIGPIPE: the reader of the output has gone, as in "demo | head".
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program without clean-up
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	s := &Stage{Context: ctx, out: out, began: time.Now(), nodes: map[string]*node{}, title: "start", grown: make(chan struct{})}

	if info, err := out.Stat(); err == nil {
		s.colours = info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
	}

	dir, err := os.MkdirTemp("", "leasefence-demo-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	etcd, stopEtcd, err := StartEtcd(ctx, dir, transport.TLSInfo{})
	if err != nil {
		return err
	}
	defer stopEtcd()
	s.Etcd = etcd
	s.Say("etcd", "runs inside this program, at %s", etcd)

	book, err := ledger.Open(ctx, dir, noFence, func(format string, args ...any) { s.Say("ledger", format, args...) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	handler, err := book.Handler()
	if err != nil {
		return err
	}
	url, stopLedger, err := Serve(handler)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopLedger()) }()
	s.Ledger = url
	s.Say("ledger", "is an empty SQLite database behind %s", url)

	play(s)
	entries, errBook := book.Entries(ctx)
	kill()
	s.running.Wait()
	if err := cmp.Or(s.err, errBook); err != nil {
		return fmt.Errorf("failed in the scene %q: %w", s.title, err)
	}
	s.note("\nThe ledger\n")
	for _, e := range entries {
		s.note("    %v by %s\n", e, e.Writer)
	}
	return ledger.Check(entries)
}

// Serve serves a handler on a free port of the loopback interface until stop is called.
func Serve(handler http.Handler) (url string, stop func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(listener) }() // until stop
	return "http://" + listener.Addr().String(), server.Close, nil
}

// note prints text as it is.
func (s *Stage) note(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format, args...) // if it fails, SIGPIPE ends the run
}

// colours are escape sequences of a terminal, by speaker.
var colours = map[string]string{"main": "\x1b[1m", "etcd": "\x1b[2m", "ledger": "\x1b[35m", "A": "\x1b[36m", "B": "\x1b[33m", "C": "\x1b[34m"}

func (s *Stage) paint(colour, text string) string {
	if !s.colours {
		return text
	}
	return colour + text + "\x1b[0m"
}

// Say prints a line of somebody.
func (s *Stage) Say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := line{who, fmt.Sprintf(format, args...)}
	colour := colours[who]
	if strings.HasPrefix(l.text, "REFUSES ") || strings.HasPrefix(l.text, "ACCEPTS ") {
		colour = "\x1b[1;31m" // red
	}
	s.note("%7.3fs  %s\n", time.Since(s.began).Seconds(), s.paint(colour, fmt.Sprintf("%-7s %s", l.who, l.text)))
	s.lines = append(s.lines, l)
	close(s.grown)
	s.grown = make(chan struct{})
}

// Do is one step. After a step has failed, the later ones do nothing, and Run returns the error: so a demo needs no
// error handling.
func (s *Stage) Do(what string, step func() error) {
	if s.err != nil {
		return
	}
	if err := step(); err != nil {
		s.err = fmt.Errorf("%s: %w", what, err)
	}
}

// Begin begins a scene.
func (s *Stage) Begin(title string) {
	s.Do(title, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.title, s.first = title, len(s.lines)
		s.note("\n%s\n", s.paint(colours["main"], title))
		return nil
	})
}

// Await waits for a line of this scene whose speaker and text match. It returns the speaker, and the texts of the
// pattern's groups.
func (s *Stage) Await(who, pattern string) (speaker string, groups []string) {
	by, says := regexp.MustCompile("^(?:"+who+")$"), regexp.MustCompile(pattern)
	groups = make([]string, says.NumSubexp())
	s.Do("await "+who+": "+pattern, func() error {
		ctx, cancel := context.WithTimeoutCause(s.Context, patience, fmt.Errorf("not seen in %v", patience))
		defer cancel()
		for next := s.first; ; {
			s.mu.Lock()
			lines, grown := s.lines, s.grown
			s.mu.Unlock()
			for ; next < len(lines); next++ {
				if match := says.FindStringSubmatch(lines[next].text); match != nil && by.MatchString(lines[next].who) {
					speaker, groups = lines[next].who, match[1:]
					return nil
				}
			}
			select {
			case <-grown:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	return speaker, groups
}

// Start starts this program with other arguments.
func (s *Stage) Start(id string, args ...string) {
	s.Do("start "+id, func() error {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(s.Context, exe, args...) // the end of the context kills it, even if it is stopped
		stdin, errIn := cmd.StdinPipe()
		stderr, errErr := cmd.StderrPipe()
		if err := errors.Join(errIn, errErr, cmd.Start()); err != nil {
			return err
		}
		s.nodes[id] = &node{cmd.Process, stdin}
		s.running.Go(func() {
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				s.Say(id, "%s", date.ReplaceAllString(lines.Text(), ""))
			}
			_ = cmd.Wait() // the state says how it has ended
			if s.Context.Err() == nil {
				s.Say(id, "has ended: %v", cmd.ProcessState)
			}
		})
		return nil
	})
}

// Signal sends a process a signal, and prints the command that would do it.
func (s *Stage) Signal(id string, sig syscall.Signal, name string) {
	s.Do("signal "+id, func() error {
		s.Say("main", "kill -%s %s", name, id)
		return s.nodes[id].process.Signal(sig)
	})
}

// Pause stops a process, and waits until it is stopped.
func (s *Stage) Pause(id string) {
	s.Signal(id, syscall.SIGSTOP, "STOP")
	s.Do("pause "+id, func() error {
		for {
			_, err := syscall.Wait4(s.nodes[id].process.Pid, nil, syscall.WUNTRACED, nil)
			if !errors.Is(err, syscall.EINTR) {
				return err
			}
		}
	})
}

// Write writes a line to the standard input of a process.
func (s *Stage) Write(id, text string) {
	s.Do("write to "+id, func() error {
		_, err := fmt.Fprintln(s.nodes[id].stdin, text)
		return err
	})
}

// StartEtcd starts an etcd in this process, with its data in a folder, and waits until it serves clients. Tls is empty
// for plain text.
func StartEtcd(ctx context.Context, dir string, tls transport.TLSInfo) (endpoint string, stop func(), err error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "etcd")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true // the data does not outlive the run
	cfg.EnableGRPCGateway = false
	cfg.ClientTLSInfo = tls
	// The system picks the port. A single member needs no port for peers.
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	if !tls.Empty() {
		loopback[0].Scheme = "https"
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls = nil
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return "", nil, err
	}
	stop = func() {
		etcd.Server.HardStop() // Close alone would wait forever if the server never became ready
		etcd.Close()
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd.Clients[0].Addr().String(), stop, nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stop()
	return "", nil, err
}
