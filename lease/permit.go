package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/scope"
)

// maxPermits is the largest number of permits of a semaphore.
const maxPermits = 1024

// fewSlots is how many slots an acquisition tries before it waits in the turnstile.
const fewSlots = 3

// Permit is one of a limited number of permits: a Permit exists only after a successful acquisition. Its context ends
// as that of a [Lock] does, and its methods are safe for concurrent use. Its token belongs to the slot and is larger
// than that of every earlier holder of the same slot. Unlock it when you are done.
type Permit struct{ held }

// LimitError means that somebody else uses a semaphore with another number of permits. Nothing was acquired.
type LimitError struct {
	Name  string
	Of    int    // the number asked for
	Limit int    // the other's number
	Owner string // the text for people in the other's key, up to 4 KiB
	Key   string // the other's key in etcd, up to 4 KiB
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("lease: semaphore %q has %d permits, not %d, for %q (key %q)",
		e.Name, e.Limit, e.Of, clip.To(e.Owner, shown), clip.To(e.Key, 256))
}

// Permit waits until it holds one of the permits of the semaphore called name, and returns it. Of is their number, 1 to
// 1,024. All users of a semaphore have to agree on it: while somebody holds a permit of another number, Permit returns
// a [*LimitError], or waits with [WithLimitChange].
//
// Each permit is a slot of its own: [Permit.Name] names it, and its token grows with each holder of that slot. So a
// resource for each slot, under that name, can refuse a holder that was paused. One mark for all slots could not: of
// two holders, one always has the lower token.
//
// Waiters are served in the order of arrival, and one wakes up for each permit. They wait in the queue of the lock
// called name: the holder of that lock blocks all of them. etcdctl lock on name also waits for the permits that are
// held when it comes, but not for those that the waiters ahead of it get. Names, ctx, options and errors are those of
// [Session.Lock]. A node of a tree with the same root excludes permits: see [Session.LockTree].
func (s *Session) Permit(ctx context.Context, name string, of int, opts ...LockOption) (*Permit, error) {
	return grip[Permit](s.permit(ctx, name, of, opts, false))
}

// TryPermit takes a permit if one is free and nobody waits. Otherwise it returns at once a [*LockedError], which
// matches [ErrLocked] and names one of the holders, or the first waiter. Other errors are those of [Session.Permit].
func (s *Session) TryPermit(ctx context.Context, name string, of int, opts ...LockOption) (*Permit, error) {
	return grip[Permit](s.permit(ctx, name, of, opts, true))
}

// DoPermit is [Session.Do] under a permit, which it waits for as [Session.Permit] does. The context that fn gets
// carries the permit for [PermitFromContext].
func (s *Session) DoPermit(ctx context.Context, name string, of int,
	fn func(ctx context.Context, token fence.Token) error, opts ...LockOption,
) error {
	if fn == nil {
		return errNoFunction
	}
	p := &Permit{}
	return s.do(ctx, name, func() (_ *Lock, err error) {
		p.lock, err = s.permit(ctx, name, of, opts, false)
		return p.lock, err
	}, func(ctx context.Context, token fence.Token) error {
		return fn(context.WithValue(ctx, permitKey{}, p), token)
	})
}

type permitKey struct{}

// PermitFromContext returns the permit under which [Session.DoPermit] runs a function with this context, or one derived
// from it.
func PermitFromContext(ctx context.Context) (*Permit, bool) {
	p, ok := ctx.Value(permitKey{}).(*Permit)
	return p, ok
}

func (s *Session) permit(ctx context.Context, name string, of int, opts []LockOption, try bool) (*Lock, error) {
	if of < 1 || of > maxPermits {
		return nil, fmt.Errorf("lease: of is %d, want 1 to %d", of, maxPermits)
	}
	return s.acquire(ctx, name, opts, mode{
		kind: KindPermit, try: try,
		enter: func(c *contender, ctx context.Context) (*contender, error) {
			c.mark = queue.SlotMark(of) // shows others that it waits for a permit
			return (&semaphore{turnstile: c, of: of}).enter(ctx)
		},
	})
}

// semaphore is an acquisition of a permit.
type semaphore struct {
	turnstile *contender // for the queue of the semaphore's name
	of        int
}

// enter takes a slot at once if one is free and nobody waits; otherwise it waits in the turnstile. It returns the
// contender of the slot or, with an error, that of the turnstile.
func (s *semaphore) enter(ctx context.Context) (*contender, error) {
	c := s.turnstile
	free := rand.IntN(s.of)
	for tries := 0; c.try || tries < fewSlots; tries++ {
		slot := s.at(free)
		var seen queue.Slots
		var waits bool
		err := slot.enterBy(ctx, func(a *etcd.Attempt, set []queue.Entry) (err error) {
			before := queue.Entry{Prefix: c.g.s.opts.Prefix + c.name + "/"}
			set[0], seen, waits, err = c.g.queue.TakeSlot(a, before, set[0], s.of, c.owner)
			return err
		})
		switch {
		case err != nil:
			return c, err
		case s.disagrees(seen):
			return c, s.limit(ctx, seen)
		case slot.entry.Rev != 0 && seen.Other == nil:
			return s.leave(slot), nil
		}
		s.quit(ctx)
		slot.clear()
		c.with = nil
		if free = seen.Free(s.of); waits || free < 0 || seen.Other != nil {
			if c.try && !waits && seen.Other == nil {
				return c, s.full(ctx, seen)
			}
			break
		}
	}
	if err := c.take(ctx); err != nil {
		return c, err
	}
	return s.pass(ctx)
}

// pass waits for a free slot and takes it, as the owner of the turnstile: nobody else takes one meanwhile.
func (s *semaphore) pass(ctx context.Context) (*contender, error) {
	c := s.turnstile
	for {
		c.g.guards.Add(&c.entry)
		c.hooked.queued("")
		var seen queue.Slots
		free := -1
		wait, cancel := scope.Join(ctx, c.life)
		err := c.g.queue.AwaitSlots(wait, c.entry.Prefix, s.of, func(now queue.Slots) bool {
			seen, free = now, now.Free(s.of)
			return free >= 0 && seen.Other == nil || s.disagrees(seen) || c.try
		})
		cancel()
		switch {
		case err != nil:
			return c, err
		case s.disagrees(seen):
			return c, s.limit(ctx, seen)
		case free < 0 || seen.Other != nil:
			return c, s.full(ctx, seen)
		}
		c.g.guards.Remove(&c.entry) // PassTurnstile deletes this key, and reports if it was gone
		slot := s.at(free)
		err = slot.enterBy(ctx, func(a *etcd.Attempt, set []queue.Entry) (err error) {
			set[0], err = c.g.queue.PassTurnstile(a, c.entry.Entry, set[0], s.of, c.owner)
			return err
		})
		switch {
		case errors.Is(err, queue.ErrGone):
			return c, c.loseKey(ctx)
		case err != nil:
			return c, err
		case slot.entry.Rev != 0:
			return s.leave(slot), nil
		}
		slot.clear() // somebody has taken the slot out of service
		c.with = nil
	}
}

// disagrees reports whether somebody uses the semaphore with another number of permits, and that is an error.
func (s *semaphore) disagrees(seen queue.Slots) bool {
	return seen.Other != nil && !seen.Passing && !s.turnstile.limitChange
}

// at makes a contender for a slot. It shares the turnstile's life.
func (s *semaphore) at(slot int) *contender {
	c := s.turnstile
	c.with = nil
	c.add(queue.SlotName(c.name, slot), false)
	c.with[0].mark = queue.SlotMark(s.of)
	return c.with[0]
}

// quit deletes the keys that have entered, so that the next acquisition need not wait for the clean-up in the
// background.
func (s *semaphore) quit(ctx context.Context) {
	c := s.turnstile
	var set []queue.Entry
	c.each(func(c *contender) {
		c.g.guards.Remove(&c.entry)
		if c.entry.Rev != 0 {
			set = append(set, c.entry.Entry)
		}
	})
	if len(set) == 0 {
		return
	}
	_, err := c.g.while(ctx, func(a *etcd.Attempt) error {
		_, err := c.g.queue.Leave(a, set)
		return err
	})
	if err == nil {
		for _, slot := range c.with { // a guard may be reading the turnstile's entry, so that stays
			slot.entry.Rev = 0
		}
	}
}

// leave gives up the turnstile's contender, whose key is gone, and returns the slot's, which takes its place.
func (s *semaphore) leave(slot *contender) *contender {
	c := s.turnstile
	c.with = nil
	if c.entry.Key != "" {
		c.gone()
	}
	return slot
}

// limit is the error if somebody else uses the semaphore with another number of permits.
func (s *semaphore) limit(ctx context.Context, seen queue.Slots) error {
	c := s.turnstile
	s.quit(ctx)
	return &LimitError{
		Name: c.name, Of: s.of, Limit: seen.Limit, Owner: ownerIn(c.withValue(ctx, seen.Other)), Key: clip.To(string(seen.Other.Key), maxKey),
	}
}

// full is the error of TryPermit if no slot is free.
func (s *semaphore) full(ctx context.Context, seen queue.Slots) error {
	c := s.turnstile
	s.quit(ctx)
	return c.lockedBy(c.withValue(ctx, seen.Any))
}

// withValue is [queue.WithValue], in one attempt.
func (c *contender) withValue(ctx context.Context, kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	_, _ = c.g.while(ctx, func(a *etcd.Attempt) error {
		kv = queue.WithValue(a, kv)
		return nil
	})
	return kv
}

// Slot returns the number of the permit, from 0 to one less than the number of permits.
func (p *Permit) Slot() int {
	slot, _ := strconv.Atoi(p.Name()[strings.LastIndexByte(p.Name(), '/')+1:])
	return slot
}

// Name returns the name of the slot, without the session's prefix: the resource that the token is for.
func (p *Permit) Name() string { return p.lock.Name() }
