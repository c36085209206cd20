package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/lease"
)

// stopped is what has happened while a command ran.
type stopped struct {
	lost   bool      // the hold was lost after its context had ended for another reason
	signal os.Signal // told the command to end; SIGHUP may be no more than a reload
}

// supervise passes signals on to the command until it has ended, and ends it if the hold is lost.
func (s *session) supervise(cmd *exec.Cmd, h hold, grace time.Duration, signals <-chan os.Signal) (did stopped) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the outcome is in ProcessState
	}()
	over := h.ctx.Done()
	var kill <-chan time.Time
	var gone <-chan struct{}
	for running := true; running; {
		select {
		case sig := <-signals:
			signalGroup(cmd, sig.(syscall.Signal))
			if sig != syscall.SIGHUP {
				did.signal = sig
			}
		case <-over:
			over = nil
			lost, taken := errors.AsType[*lease.LostError](context.Cause(h.ctx))
			switch {
			case !taken: // it was asked to let go: nobody else has it before this is over
				s.app.say("%s: %v: CMD gets SIGTERM", strings.Join(h.names, ", "), context.Cause(h.ctx))
				signalGroup(cmd, syscall.SIGTERM)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				gone = s.gone(ctx, h)
			case grace == 0 || lost.Reason != lease.ReasonDeadlinePassed: // somebody else may have it
				signalGroup(cmd, syscall.SIGKILL)
			default:
				signalGroup(cmd, syscall.SIGTERM)
				kill = time.After(grace)
			}
		case <-kill:
			signalGroup(cmd, syscall.SIGKILL)
		case <-gone:
			gone, did.lost = nil, true
			signalGroup(cmd, syscall.SIGKILL)
		case <-ended:
			running = false
		}
	}
	takeTerminalBack(cmd)
	return did
}

// gone is closed when a hold that was asked to end is lost before it has ended by itself: its context cannot tell any more.
func (s *session) gone(ctx context.Context, h hold) <-chan struct{} {
	done := make(chan struct{})
	end := sync.OnceFunc(func() { close(done) })
	id := leaseText(s.Status().LeaseID)
	go func() {
		for st := range s.Changes(ctx) {
			if st.State == lease.StateLost || leaseText(st.LeaseID) != id {
				end()
			}
		}
	}()
	mine := func(c lease.Contender) bool { return leaseText(c.Lease) == id }
	for _, name := range h.names {
		go func() {
			for q, err := range lease.Watch(ctx, s.client, name) {
				if err != nil || !slices.ContainsFunc(q.Holders, mine) {
					end() // or nobody watches any more
				}
			}
		}()
	}
	return done
}

// environment is that of a command: without what an outer leasefence has put there.
func (h hold) environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"LEASEFENCE_TOKEN", "LEASEFENCE_LOCK", "LEASEFENCE_KEY", "LEASEFENCE_SHARED"}, name)
	})
	env = append(env,
		"LEASEFENCE_TOKEN="+h.token,
		"LEASEFENCE_LOCK="+strings.Join(h.names, "\n"),
		"LEASEFENCE_KEY="+h.key,
	)
	if h.shared {
		env = append(env, "LEASEFENCE_SHARED=1")
	}
	return env
}
