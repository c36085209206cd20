package mix

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/integration/child"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/pki"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// holderEnv is the environment variable that makes a process a client and contains its order.
const holderEnv = "LEASEFENCE_SAFETY_HOLDER"

type order struct {
	Name      string
	Endpoints []string
	Files     pki.Files
	User      string
	Resources string // address
	Clock     history.Clock
	First     int64 // its numbers are above this one
	Round     int
	Seed      uint64
}

// Serve runs a client and exits if this process was started for that; otherwise it does nothing. Call it first in main
// or TestMain.
func Serve() {
	child.Play(holderEnv, func(o order) error {
		signal.Ignore(syscall.SIGINT) // the parent ends this process by closing its standard input
		return serve(o)
	})
}

// serve runs workers until the standard input ends. Then it drains them.
func serve(o order) error {
	log := history.NewRecorder(os.Stdout, o.Clock, o.First) // if nobody reads, the process ends by SIGPIPE
	out, err := newWriter(log, o.Resources, o.Seed)
	if err != nil {
		return err
	}
	config, err := transport.TLSInfo{CertFile: o.Files.Cert, KeyFile: o.Files.Key, TrustedCAFile: o.Files.Authority}.ClientConfig()
	if err != nil {
		return err
	}
	draining := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // nothing is written to it
		close(draining)
		time.AfterFunc(patience, cancel)
	}()
	var client *clientv3.Client
	var session *lease.Session
	err = insist(ctx, func(ctx context.Context) (err error) {
		if client == nil { // a member must authenticate the user
			client, err = clientv3.New(clientv3.Config{
				Endpoints: o.Endpoints, TLS: config, Username: o.User, Password: passwordOf(o.User), Logger: zap.NewNop(),
				DialTimeout: 2 * time.Second, DialOptions: renewals{log}.options(),
			})
		}
		if err == nil {
			session, err = lease.NewSession(ctx, client, lease.Options{TTL: ttl, Owner: o.Name})
		}
		return err
	})
	if err != nil {
		return nil // the round has ended before there was a session
	}
	c := &crew{
		name: o.Name, log: log, names: roundNames(o.Round), out: out, draining: draining, patience: ctx,
		session: func() *lease.Session { return session },
	}
	c.start(3, o.Seed)
	<-draining
	c.wg.Wait()
	return closeSession(context.Background(), session) // the client is not closed, since that may hang; it ends with the process
}

// berth is the place of a client that is a process of its own. After a kill a new process with another name takes it.
type berth struct {
	*link
	round    *round
	name     string // of the berth
	user     string
	launched int // processes until now

	*child.Process // the present one
	holder         string
	ended          chan struct{} // closed when all its events are on the tape
}

// launch starts the first process, or the next one after a kill.
func (b *berth) launch() (err error) {
	b.launched++
	r := b.round.run
	b.holder = b.name + "." + strconv.Itoa(b.launched)
	b.Process, err = child.Start(holderEnv, order{
		Name: b.holder, Endpoints: b.endpoints, Resources: b.round.store.addr(), User: b.user, Files: r.secured.holders,
		// Each process has its own range of numbers, above those of the tape.
		Clock: r.tape.Clock, First: r.tape.ID() << 32, Round: b.round.number,
		Seed: r.opts.Seed ^ hash(b.name) + uint64(b.round.number*1000+b.launched),
	})
	if err != nil {
		return fmt.Errorf("mix: start %s: %w", b.holder, err)
	}
	process, ended := b.Process, make(chan struct{})
	b.ended = ended
	go func() {
		defer close(ended)
		for e, err := range history.Scan(process.Stdout) {
			if err != nil { // a killed process leaves a line that was cut short
				break
			}
			r.tape.Record(e)
		}
		_, _ = io.Copy(io.Discard, process.Stdout)
	}()
	return nil
}

func (b *berth) kill() {
	_ = b.Kill()
	<-b.ended
	_ = b.Wait()
}

// drain lets the process finish its work, and waits until it ends.
func (b *berth) drain(bound time.Duration) error {
	_ = b.Resume()
	_ = b.Stdin.Close()
	select {
	case <-b.ended:
	case <-time.After(bound):
		b.kill()
		return fmt.Errorf("mix: %s has not ended in %v", b.holder, bound)
	}
	if err := b.Wait(); err != nil {
		return fmt.Errorf("mix: %s: %w", b.holder, err)
	}
	return nil
}

// processFaults affect clients that are processes of their own.
func processFaults() []kind {
	return []kind{
		{"client stopped", onHolder(stopHolder)},
		{"stopped with an answer in its socket", onHolder(stopWithAnswer)},
		{history.ClientKilled, onHolder(killHolder)},
	}
}

// onHolder injects a fault at the slot's client that is a process. It waits until the process holds a lock.
func onHolder(do func(*strike, *berth) bool) func(*strike) bool {
	return func(s *strike) bool {
		b := s.round.berths[s.share]
		for ; s.ctx.Err() == nil; sleep(s.ctx, time.Millisecond) {
			if len(s.tape.held(b.holder)) > 0 {
				s.begin(b.holder)
				return do(s, b)
			}
		}
		return false
	}
}

func stopHolder(s *strike, b *berth) bool {
	hit := b.Signal(syscall.SIGSTOP) == nil
	s.last(inTTL+200, inTTL+2000)
	_ = b.Resume()
	return hit
}

// stopWithAnswer pauses a process while answers to its renewals are on their way. The process goes on after the
// deadline that it knew, and then finds these answers in its sockets. They must not revive a handle.
func stopWithAnswer(s *strike, b *berth) bool {
	b.each(func(p *faults.Proxy) { p.Answers.Hold() })
	sleep(s.ctx, ttl/3)
	hit := b.Pause(s.ctx) == nil && b.traffic().Waiting > 0
	b.each((*faults.Proxy).Restore)
	sleep(s.ctx, ttl-ttl/3+20*time.Millisecond)
	_ = b.Resume()
	return hit
}

func killHolder(s *strike, b *berth) bool {
	b.kill()
	s.last(50, 500)
	return b.launch() == nil
}
