package mix

import (
	"syscall"
	"time"

	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// processFaults strike clients that are processes of their own.
func processFaults() []kind {
	return []kind{
		{"client stopped", onHolder(stopHolder)},
		{"stopped with an answer in its socket", onHolder(stopWithAnswer)},
		{history.ClientKilled, onHolder(killHolder)},
	}
}

// onHolder strikes a holder process that holds a lock, and that no other fault has reserved.
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

// stopHolder stops a process for longer than its lease lives, and lets it go on.
func stopHolder(s *strike, b *berth) bool {
	hit := b.holder.Signal(syscall.SIGSTOP) == nil
	ttl := int(s.ttl.Milliseconds())
	s.last(ttl+200, ttl+2000)
	_ = b.holder.Resume()
	return hit
}

// stopWithAnswer stops a process while answers to its renewals are on their way. They are there when it goes on, past the
// deadline of what it had heard before: they must not revive anything.
func stopWithAnswer(s *strike, b *berth) bool {
	b.link.each(func(p *faults.Proxy) { p.Answers.Hold() })
	sleep(s.ctx, s.ttl/3)
	hit := b.holder.Pause(s.ctx) == nil
	b.link.each((*faults.Proxy).Restore)
	sleep(s.ctx, s.ttl-s.ttl/3+20*time.Millisecond)
	_ = b.holder.Resume()
	return hit
}

func killHolder(s *strike, b *berth) bool {
	b.holder.kill()
	s.tape.tally.forget(b.holder.name)
	s.last(50, 500)
	return b.launch() == nil
}
