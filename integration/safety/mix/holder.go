package mix

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/integration/pki"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// holderEnv is set for a client that is a process of its own and holds its order.
const holderEnv = "LEASEFENCE_SAFETY_HOLDER"

// order is what such a process is told.
type order struct {
	Name      string
	Endpoints []string
	Files     pki.Files
	User      string
	Resources string // address
	Began     time.Duration
	First     int64 // its numbers begin above
	Round     int
	TTL       time.Duration
	Seed      uint64
	Workers   int
}

// Serve is a client's process if this process was started to be one, and exits then. Call it first in main or TestMain.
func Serve() {
	text, ok := os.LookupEnv(holderEnv)
	if !ok {
		return
	}
	signal.Ignore(syscall.SIGINT) // the parent closes the standard input
	if err := serve(text); err != nil {
		fmt.Fprintln(os.Stderr, "holder:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// outgoing records to standard output, line by line: what is not written when the process is killed is lost.
type outgoing struct{ *history.Recorder }

func (o outgoing) Record(e history.Event) {
	o.Recorder.Record(e)
	if o.Flush() != nil { // nobody reads
		os.Exit(1)
	}
}

// serve works until the standard input ends.
func serve(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	log := outgoing{history.NewRecorder(os.Stdout, history.ResumeClock(o.Began), o.First)}
	out, err := newWriter(log, o.Resources, o.Seed)
	if err != nil {
		return err
	}
	config, err := o.Files.Client()
	if err != nil {
		return err
	}
	draining := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // nothing is written to it
		close(draining)
		time.AfterFunc(served(o.TTL), cancel)
	}()
	client, err := dial(ctx, clientv3.Config{
		Endpoints: o.Endpoints, TLS: config, Username: o.User, Password: passwordOf(o.User), Logger: zap.NewNop(),
	})
	if err != nil {
		return nil // as below
	}
	var session *lease.Session
	err = insist(ctx, func(ctx context.Context) (err error) {
		session, err = lease.NewSession(ctx, client, lease.Options{TTL: o.TTL, Owner: o.Name})
		return err
	})
	if err != nil {
		return nil // the round has ended before there was a session
	}
	c := &crew{
		name: o.Name, log: log, names: roundNames(o.Round), out: out, ttl: o.TTL, draining: draining, patience: ctx,
		session: func() *lease.Session { return session },
	}
	c.start(o.Workers, o.Seed)
	<-draining
	c.wg.Wait()
	closing, stop := context.WithTimeout(context.Background(), served(o.TTL))
	defer stop()
	return session.Close(closing) // the process ends, and the client with it, which may hang
}

// dial makes a client, for which a member has to authenticate its user: there may be none yet that can.
func dial(ctx context.Context, config clientv3.Config) (client *clientv3.Client, err error) {
	err = insist(ctx, func(ctx context.Context) (err error) {
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(ctx, end)
		bounded := config
		bounded.Context = life
		client, err = clientv3.New(bounded)
		switch {
		case err != nil:
			end()
		case !stop():
			err = errors.Join(context.Cause(ctx), client.Close())
		default:
			context.AfterFunc(client.Ctx(), end) //nolint:contextcheck // which ends with the client
		}
		return err
	})
	return client, err
}

// holder is such a process as its parent sees it.
type holder struct {
	name  string
	tape  *tape
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed when all that it has recorded is in the tape

	mu   sync.Mutex // guards the field below; held while a signal is sent, so that it goes to this process
	gone bool
}

func startHolder(o order, t *tape) (*holder, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, "-test.run=^$") //nolint:noctx // it ends with its standard input
	cmd.Env = append(os.Environ(), holderEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	// A process group of its own, see package etcdproc.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("mix: start %s: %w", o.Name, err)
	}
	h := &holder{name: o.Name, tape: t, cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		defer close(h.ended)
		for e, err := range history.Scan(stdout) {
			if err != nil { // a killed process leaves a line that was cut short
				break
			}
			t.Record(e)
		}
		_, _ = io.Copy(io.Discard, stdout)
	}()
	return h, nil
}

// signal reports whether the process was there to get it.
func (h *holder) signal(sig syscall.Signal) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.gone && h.cmd.Process.Signal(sig) == nil
}

// kill ends the process as SIGKILL does.
func (h *holder) kill() {
	h.signal(syscall.SIGKILL)
	_ = h.wait()
}

// wait returns when the process is gone.
func (h *holder) wait() error {
	<-h.ended
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return nil
	}
	h.gone = true
	_ = h.stdin.Close()
	return h.cmd.Wait()
}

// drain lets the process finish what it does and waits for it.
func (h *holder) drain(bound time.Duration) error {
	h.signal(syscall.SIGCONT)
	_ = h.stdin.Close()
	select {
	case <-h.ended:
	case <-time.After(bound):
		h.kill()
		return fmt.Errorf("mix: %s has not ended in %v", h.name, bound)
	}
	if err := h.wait(); err != nil {
		return fmt.Errorf("mix: %s: %w", h.name, err)
	}
	return nil
}
