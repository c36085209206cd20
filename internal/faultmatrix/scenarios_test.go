package faultmatrix_test

import (
	"context"
	"errors"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

const ms = time.Millisecond

// scenarios are what the subject does when the fault hits it. A scenario may close the subject's session; otherwise
// play does.
var scenarios = []struct {
	name string
	run  func(w *world, s *actor)
}{
	{"lock", func(_ *world, s *actor) {
		for range 2 {
			s.lock("a").keep(2500 * ms).unlock()
		}
	}},
	{"hold", func(w *world, s *actor) {
		other := w.rival()
		w.inBackground(func() {
			time.Sleep(time.Second)
			other.lock("a").keep(100 * ms).unlock()
		})
		s.lock("a").keep(3 * ttl).unlock()
	}},
	{"try", func(w *world, s *actor) {
		other := w.rival()
		s.try("a").keep(time.Second).unlock()
		time.Sleep(100 * ms)
		done := w.inBackground(func() { other.lock("a").keep(100 * ms).unlock() })
		s.try("a").keep(300 * ms).unlock()
		<-done
	}},
	{"try while locked", func(w *world, s *actor) {
		r := w.rival().lock("a")
		if s.try("a") != nil {
			w.fail("got a lock that somebody holds")
		}
		r.keep(ms).unlock()
		s.try("a").keep(100 * ms).unlock()
	}},
	{"wait", func(w *world, s *actor) {
		other := w.rival()
		r := other.lock("a")
		behind := w.rival()
		w.inBackground(func() {
			time.Sleep(1500 * ms)
			behind.lock("a").keep(200 * ms).unlock()
		})
		w.inBackground(func() { r.keep(3 * time.Second).unlock() })
		s.lock("a").keep(700 * ms).unlock()
	}},
	{"crowd", func(w *world, s *actor) {
		other := w.rival()
		for range 3 {
			w.inBackground(func() {
				for range 2 {
					s.lock("a").keep(400 * ms).unlock()
				}
			})
		}
		w.inBackground(func() {
			for range 2 {
				other.lock("a").keep(100 * ms).unlock()
			}
		})
	}},
	// Two readers hold at the same time, with a writer between their turns.
	{"read", func(w *world, s *actor) {
		other, writer := w.rival(), w.rival()
		w.inBackground(func() { other.rlock("a").keep(1500 * ms).unlock() })
		w.inBackground(func() {
			time.Sleep(time.Second)
			writer.lock("a").keep(300 * ms).unlock()
		})
		first := s.rlock("a").keep(1200 * ms)
		s.tryR("a").unlock() // fails because a writer waits, unless the fault has delayed the subject
		first.unlock()
		s.rlock("a").keep(400 * ms).unlock()
		s.tryR("a").keep(100 * ms).unlock()
	}},
	// Two sets overlap, with a lock of one of their names and of a nested name.
	{"set", func(w *world, s *actor) {
		other, single, nested := w.rival(), w.rival(), w.rival()
		w.inBackground(func() { nested.lock("b/nested").keep(4 * time.Second).unlock() })
		w.inBackground(func() { single.lock("b").keep(500 * ms).unlock() })
		w.inBackground(func() {
			time.Sleep(ms)
			other.lockAll("c", "b", "a").keep(300 * ms).unlock()
		})
		time.Sleep(2 * ms)
		s.lockAll("a", "b").keep(1500 * ms).unlock()
		s.tryAll("b", "c").keep(300 * ms).unlock()
	}},
	// Two permits for three processes, one of which comes again.
	{"permit", func(w *world, s *actor) {
		first, second := w.rival(), w.rival()
		w.inBackground(func() { first.permit().keep(1200 * ms).unlock() })
		w.inBackground(func() {
			time.Sleep(ms)
			second.permit().keep(600 * ms).unlock()
			second.permit().keep(600 * ms).unlock()
		})
		time.Sleep(5 * ms)
		s.permit().keep(500 * ms).unlock()
		s.tryPermit().keep(300 * ms).unlock()
		time.Sleep(time.Second)
		s.permit().keep(300 * ms).unlock()
	}},
	// Two branches are held, and then the whole tree.
	{"tree", func(w *world, s *actor) {
		beside, above := w.rival(), w.rival()
		w.inBackground(func() { beside.lockTree("a/c").keep(1500 * ms).unlock() })
		w.inBackground(func() {
			time.Sleep(time.Second)
			above.lockTree("a").keep(300 * ms).unlock()
		})
		s.lockTree("a/b").keep(1200 * ms).unlock()
		s.lockTree("a/b").keep(400 * ms).unlock()
	}},
	// A lock goes around, so that each process waits by its kept watches, behind the owner and behind a waiter.
	{"round", func(w *world, s *actor) {
		for i, a := range []*actor{w.rival(), s, w.rival()} {
			w.inBackground(func() {
				time.Sleep(time.Duration(i) * ms)
				for range 4 {
					a.lock("a").keep(5 * ms).unlock()
				}
			})
		}
	}},
	// While a queue has keys that are no contenders, it is read by names. A key that looks like a contender's, here
	// one of lease 1f, is read by itself too.
	{"strays", func(w *world, s *actor) {
		w.stray("a/stray")
		w.stray("a/1f")
		r := w.rival().lock("a")
		w.inBackground(func() { r.keep(1500 * ms).unlock() })
		s.lock("a").keep(300 * ms).unlock()
	}},
	{"strays beside tries", func(w *world, s *actor) {
		w.stray("a/1f")
		w.stray("b/1f")
		s.try("a").keep(100 * ms).unlock()
		r := w.rival().lock("b")
		w.inBackground(func() { r.keep(300 * ms).unlock() })
		s.tryAll("a", "b").unlock()
		time.Sleep(time.Second) // until b is free
		s.tryAll("a", "b").keep(100 * ms).unlock()
	}},
	{"strays beside permits", func(w *world, s *actor) {
		w.stray("a/1f")
		first, second := w.rival(), w.rival()
		w.inBackground(func() { first.permit().keep(1200 * ms).unlock() })
		w.inBackground(func() { second.permit().keep(1500 * ms).unlock() })
		time.Sleep(5 * ms) // until both have one
		s.permit().keep(300 * ms).unlock()
		s.tryPermit().keep(300 * ms).unlock()
		s.campaign("a", election.Options{Value: "s"}).keep(300 * ms).unlock()
	}},
	{"do", func(w *world, s *actor) {
		other := w.rival()
		w.inBackground(func() {
			time.Sleep(ms)
			other.lock("a").keep(100 * ms).unlock()
		})
		for range 2 {
			var r *hold
			asked := time.Now()
			err := s.call("do", func(ctx context.Context) error {
				return s.s.Do(ctx, "a", func(ctx context.Context, token fence.Token) error {
					got := &hold{handle: scoped{ctx}, spot: spot{name: "a"}, token: token}
					r = s.held(got, asked)
					r.keep(1200 * ms)
					time.Sleep(100 * ms) // the function takes a while to stop
					if cause := context.Cause(ctx); errors.Is(cause, lease.ErrUnlocked) {
						w.fail("released while the function was running")
					}
					return nil
				})
			})
			if r == nil {
				s.judge("do", err)
				continue
			}
			if errors.Is(err, lease.ErrLost) != errors.Is(context.Cause(r.Context()), lease.ErrLost) {
				// In an outage the lease may be lost before the server confirms the release.
				if _, disturbed := w.disturbed(r.token); !disturbed && w.fault.class != outage {
					w.fail("do returned %v, its function's context ended with %v", err, context.Cause(r.Context()))
				}
			}
			if err != nil && !errors.Is(err, lease.ErrLost) {
				s.judge("do", err)
			}
		}
	}},
	{"heal", func(w *world, s *actor) {
		r := s.lock("a").keep(500 * ms)
		w.scripted = true
		w.revoke()
		r.keep(10 * time.Second).unlock()
		s.lock("a").keep(500 * ms).unlock()
	}},
	{"close", func(w *world, s *actor) {
		other := w.rival()
		r := s.lock("a")
		w.inBackground(func() { other.lock("a").keep(100 * ms).unlock() })
		done := w.inBackground(func() {
			err := s.call("lock", func(ctx context.Context) error {
				l, err := s.s.Lock(ctx, "a")
				if err == nil {
					got := &hold{handle: l, spot: spot{name: l.Name()}, token: l.Token(), release: l.Unlock}
					s.held(got, time.Now()).unlock()
				}
				return err
			})
			if err != nil && !errors.Is(err, lease.ErrClosed) {
				s.judge("lock", err)
			}
		})
		r.keep(1200 * ms)
		s.close()
		<-done
		if r != nil && r.Err() == nil {
			w.fail("a handle is live after close")
		}
	}},
	{"two names", func(w *world, s *actor) {
		other := w.rival()
		for _, name := range []string{"a", "a/b"} {
			w.inBackground(func() {
				for range 2 {
					s.lock(name).keep(300 * ms).unlock()
				}
			})
			w.inBackground(func() { other.lock(name).keep(100 * ms).unlock() })
		}
	}},
	{"lead", func(w *world, s *actor) {
		other := w.rival()
		r := s.campaign("a", election.Options{Value: "s"})
		w.inBackground(func() { other.campaign("a", election.Options{Value: "other"}).keep(100 * ms).unlock() })
		r.proclaim("s1")
		r.keep(1500 * ms).proclaim("s2")
		r.keep(4 * time.Second).unlock() // after late requests have arrived
	}},
	{"prefer", func(w *world, s *actor) {
		first := w.rival().campaign("a", election.Options{Value: "first"})
		w.inBackground(func() {
			time.Sleep(time.Second)
			w.rival().campaign("a", election.Options{Value: "urgent", Priority: 5}).keep(300 * ms).unlock()
		})
		w.inBackground(func() { first.keep(3 * time.Second).unlock() })
		s.campaign("a", election.Options{Value: "s", Priority: 1}).keep(200 * ms).unlock()
	}},
	{"transfer", func(w *world, s *actor) {
		r := s.campaign("a", election.Options{Value: "s"})
		for _, value := range []string{"b", "c"} {
			other := w.rival()
			w.inBackground(func() { other.campaign("a", election.Options{Value: value}).keep(200 * ms).unlock() })
			time.Sleep(10 * ms)
		}
		if r == nil {
			return
		}
		if r.keep(500 * ms); r.Err() != nil {
			r.unlock()
			return
		}
		err := s.call("transfer", func(ctx context.Context) error {
			return r.handle.(leader).Transfer(ctx, "c")
		})
		switch {
		case r.Err() == nil: // the transfer failed before the release, and the subject still leads
			s.judge("transfer", err)
			r.unlock()
		case errors.Is(err, election.ErrNoCandidate): // c gave up meanwhile, and the next candidate leads
			r.checkRelease(nil)
		default:
			r.checkRelease(err)
			if next := w.after(r); err == nil && next != "c" {
				w.fail("transferred to %q, want c", next)
			}
		}
	}},
	{"be favoured", func(w *world, s *actor) {
		first := w.rival()
		r := first.campaign("a", election.Options{Value: "first"})
		second := w.rival()
		w.inBackground(func() { second.campaign("a", election.Options{Value: "second"}).keep(200 * ms).unlock() })
		time.Sleep(10 * ms)
		done := w.inBackground(func() { s.campaign("a", election.Options{Value: "s"}).keep(200 * ms).unlock() })
		time.Sleep(2 * time.Second)
		err := first.call("transfer", func(ctx context.Context) error {
			return r.handle.(leader).Transfer(ctx, "s")
		})
		switch {
		case err != nil && !errors.Is(err, election.ErrNoCandidate):
			w.fail("transfer: %v", err)
		case r.Err() == nil:
			r.unlock()
		default:
			r.checkRelease(nil)
		}
		<-done
	}},
}

// scoped is the handle of a lock as a function under Do sees it.
type scoped struct {
	ctx context.Context //nolint:containedctx // the function's
}

func (s scoped) Context() context.Context { return s.ctx }
func (s scoped) Err() error               { return context.Cause(s.ctx) }

// after returns the value of the first owner after r's key had gone.
func (w *world) after(r *hold) string {
	best := int64(0)
	value := ""
	list := w.places(r.name)
	mine := list[int64(r.token)]
	for rev, p := range list {
		if rev != int64(r.token) && !p.first.IsZero() && mine != nil && !p.first.Before(mine.deleted) && (best == 0 || rev < best) {
			best, value = rev, p.value
		}
	}
	return value
}
