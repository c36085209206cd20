package mix

import (
	"syscall"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// processFaults strike clients that are processes of their own.
func processFaults() []kind {
	return []kind{{"client stopped", stopHolder}, {history.ClientKilled, killHolder}}
}

// awaitHolding returns a process of its own that holds something, and is not struck by another fault until it is given
// back. It returns nil if the round ends before.
func (s *strike) awaitHolding() (b *berth, giveBack func()) {
	b = s.round.takeBerth(s.rng)
	if b == nil {
		return nil, nil
	}
	for {
		held, changed := s.tape.tally.held(b.holder.name + "/")
		if len(held) > 0 {
			return b, b.giveBack
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			b.giveBack()
			return nil, nil
		}
	}
}

// stopHolder stops a process for longer than its lease lives, and lets it go on.
func stopHolder(s *strike) bool {
	b, giveBack := s.awaitHolding()
	if b == nil {
		return false
	}
	defer giveBack()
	s.begin(b.holder.name)
	hit := b.holder.signal(syscall.SIGSTOP)
	ttl := int(s.ttl.Milliseconds())
	s.last(ttl+200, ttl+2000)
	b.holder.signal(syscall.SIGCONT)
	return hit
}

func killHolder(s *strike) bool {
	b, giveBack := s.awaitHolding()
	if b == nil {
		return false
	}
	defer giveBack()
	s.begin(b.holder.name)
	b.holder.kill()
	s.tape.tally.forget(b.holder.name)
	s.last(50, 500)
	return b.launch() == nil
}
