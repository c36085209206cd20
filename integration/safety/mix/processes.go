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

// onHolder injects a fault at a client's process that no other fault has reserved. It waits until the process holds a
// lock.
func onHolder(do func(*strike, *berth) bool) func(*strike) bool {
	return func(s *strike) bool {
		b, giveBack := take(s, s.round.berths)
		if b == nil {
			return false
		}
		defer giveBack()
		for {
			held, changed := s.tape.tally.held(b.holder.name + "/")
			if len(held) > 0 {
				s.begin(b.holder.name)
				return do(s, b)
			}
			select {
			case <-changed:
			case <-s.ctx.Done():
				return false
			}
		}
	}
}

// stopHolder pauses a process for longer than its lease lives.
func stopHolder(s *strike, b *berth) bool {
	hit := b.holder.Signal(syscall.SIGSTOP) == nil
	ttl := int(s.ttl.Milliseconds())
	s.last(ttl+200, ttl+2000)
	_ = b.holder.Resume()
	return hit
}

// stopWithAnswer pauses a process while answers to its renewals are on their way. The process goes on after the
// deadline that it knew, and then finds these answers in its sockets. They must not revive a handle.
func stopWithAnswer(s *strike, b *berth) bool {
	b.link.each(func(p *faults.Proxy) { p.Answers.Hold() })
	sleep(s.ctx, s.ttl/3)
	hit := b.holder.Pause(s.ctx) == nil
	b.link.each((*faults.Proxy).Restore)
	sleep(s.ctx, s.ttl-s.ttl/3+20*time.Millisecond)
	_ = b.holder.Resume()
	return hit
}

// killHolder kills a process, and starts the next one in its berth.
func killHolder(s *strike, b *berth) bool {
	b.holder.kill()
	s.tape.tally.forget(b.holder.name)
	s.last(50, 500)
	return b.launch() == nil
}
