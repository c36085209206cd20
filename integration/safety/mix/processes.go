package mix

import (
	"syscall"
	"time"

	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/history"
)

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
