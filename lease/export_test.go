package lease

import (
	"context"
	"math/rand/v2"
	"reflect"
	"time"
)

// Registered counts the contexts and functions that wait for the end of ctx, which must come from [context.WithCancel],
// or of the session's own contexts.
func (s *Session) Registered(ctx context.Context) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ctx := range []context.Context{ctx, s.run, s.grant.handles} {
		n += reflect.ValueOf(ctx).Elem().FieldByName("children").Len()
	}
	return n
}

// KeysInUse counts the keys of the present lease that the session may have in etcd.
func (s *Session) KeysInUse() int { return len(s.grant.keys.inUse()) }

// WithoutJitter makes renewals go out exactly when they are due.
func WithoutJitter() { random = func(time.Duration) time.Duration { return 0 } }

// WithJitter turns the jitter on, as users have it, until restored.
func WithJitter() (restore func()) {
	random = rand.N[time.Duration]
	return WithoutJitter
}
