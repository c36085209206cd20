package mix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/integration/child"
	"github.com/leasefence/leasefence/integration/pki"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// holderEnv is the environment variable that makes a process a client and contains its order.
const holderEnv = "LEASEFENCE_SAFETY_HOLDER"

// order is the configuration of a client's process.
type order struct {
	Name      string
	Endpoints []string
	Files     pki.Files
	User      string
	Resources string // address
	Clock     history.Clock
	First     int64 // its numbers are above this one
	Round     int
	TTL       time.Duration
	Seed      uint64
	Workers   int
}

// Serve runs a client and exits if this process was started for that; otherwise it does nothing. Call it first in main
// or TestMain.
func Serve() {
	child.Play(holderEnv, func(o order) error {
		signal.Ignore(syscall.SIGINT) // the parent ends this process by closing its standard input
		return serve(o)
	})
}

// outgoing writes each event to standard output at once, so that little is lost when the process is killed.
type outgoing struct{ *history.Recorder }

func (o outgoing) Record(e history.Event) {
	o.Recorder.Record(e)
	if o.Flush() != nil { // nobody reads
		os.Exit(1)
	}
}

// serve runs workers until the standard input ends. Then it drains them.
func serve(o order) error {
	log := outgoing{history.NewRecorder(os.Stdout, o.Clock, o.First)}
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
		DialOptions: renewals{log}.options(),
	})
	if err != nil {
		return nil // the round has ended before there was a client
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
	return session.Close(closing) // the client is not closed, since that may hang; it ends with the process
}

// dial makes a client. It retries until ctx ends, since a member must authenticate the user.
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
			context.AfterFunc(client.Ctx(), end) //nolint:contextcheck // the client's context ends when the client is closed
		}
		return err
	})
	return client, err
}

// holder is a client's process, as its parent sees it.
type holder struct {
	*child.Process
	name  string
	ended chan struct{} // closed when all its events are on the tape
}

func startHolder(o order, t *tape) (*holder, error) {
	run, err := child.Start("", holderEnv, o)
	if err != nil {
		return nil, fmt.Errorf("mix: start %s: %w", o.Name, err)
	}
	h := &holder{Process: run, name: o.Name, ended: make(chan struct{})}
	go func() {
		defer close(h.ended)
		for e, err := range history.Scan(run.Stdout) {
			if err != nil { // a killed process leaves a line that was cut short
				break
			}
			t.Record(e)
		}
		_, _ = io.Copy(io.Discard, run.Stdout)
	}()
	return h, nil
}

// kill ends the process with SIGKILL.
func (h *holder) kill() {
	_ = h.Kill()
	_ = h.wait()
}

// wait returns when the process is gone.
func (h *holder) wait() error {
	<-h.ended
	return h.Wait()
}

// drain lets the process finish its work, and waits until it ends.
func (h *holder) drain(bound time.Duration) error {
	_ = h.Resume()
	_ = h.Stdin.Close()
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
