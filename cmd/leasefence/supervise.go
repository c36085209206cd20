package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/cmd/leasefence/internal/process"
	"github.com/leasefence/leasefence/lease"
)

// stopped is what happened while a command ran.
type stopped struct {
	lost   bool      // the hold was lost after somebody had asked for its release
	signal os.Signal // the last signal that was passed on and asks the command to end; SIGHUP may only mean a reload
}

// supervise passes signals on to the command until it has ended, and ends it if the hold is lost.
func (s *session) supervise(cmd *exec.Cmd, h hold, grace time.Duration, signals <-chan os.Signal) (did stopped) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the outcome is in ProcessState
	}()
	over := h.Context().Done()
	// The grace counts from the deadline. leasefence may learn of that later, if it was stopped or the host suspended.
	graceLeft := func() time.Duration { return time.Until(h.Deadline().Add(grace)) }
	var kill <-chan time.Time
	var gone <-chan struct{}
	for running := true; running; {
		select {
		case sig := <-signals:
			process.SignalGroup(cmd, sig)
			if sig != process.SIGHUP {
				did.signal = sig
			}
		case <-over:
			over = nil
			lost, taken := errors.AsType[*lease.LostError](context.Cause(h.Context()))
			switch {
			case !taken: // somebody asked for the release: nobody else gets the lock before the command has ended
				s.say("%s: %v: CMD gets SIGTERM", strings.Join(h.names, ", "), context.Cause(h.Context()))
				process.SignalGroup(cmd, process.SIGTERM)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				gone = s.gone(ctx, h)
			case graceLeft() <= 0 || lost.Reason != lease.ReasonDeadlinePassed: // somebody else may have it already
				process.SignalGroup(cmd, process.SIGKILL)
			default:
				process.SignalGroup(cmd, process.SIGTERM)
				kill = time.After(0)
			}
		case <-kill:
			kill = nil
			if left := graceLeft(); left > 0 {
				kill = time.After(min(left, 100*time.Millisecond)) // a timer stands still while the host is suspended
			} else {
				process.SignalGroup(cmd, process.SIGKILL)
			}
		case <-gone:
			gone, did.lost = nil, true
			process.SignalGroup(cmd, process.SIGKILL)
		case <-ended:
			running = false
		}
	}
	process.TakeTerminalBack(cmd)
	return did
}

// outcome is the exit code of a command that has ended, nil for 0.
func outcome(cmd *exec.Cmd) error {
	if code := process.ExitCode(cmd.ProcessState); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// gone returns a channel that is closed if the hold is lost after somebody has asked for its release. The hold's
// context cannot report that: it ended with the request.
func (s *session) gone(ctx context.Context, h hold) <-chan struct{} {
	lost, end := context.WithCancel(ctx)
	id := leaseText(s.Status().LeaseID)
	go func() {
		for st := range s.Changes(lost) {
			if st.State == lease.StateLost || leaseText(st.LeaseID) != id {
				end()
			}
		}
	}()
	mine := func(c lease.Contender) bool { return leaseText(c.Lease) == id }
	for _, name := range h.names {
		go func() {
			for q, err := range lease.Watch(lost, s.client, name) {
				if err != nil || !slices.ContainsFunc(q.Holders, mine) {
					end() // on an error, too: without a watch the loss would go unnoticed
				}
			}
		}()
	}
	return lost.Done()
}

// environment is the environment of a command: leasefence's own, without the variables of an outer leasefence.
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
