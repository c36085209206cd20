package fencetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/leasefence/leasefence/fence"
)

// errTold reports a call of the hooks that differs from the answer of the verb.
var errTold = errors.New("the hooks disagree with the verb")

// Told records the calls of a store's hooks.
type Told struct {
	mu  sync.Mutex
	all []Event
}

// Event is a call of a hook. Err is nil if the token was accepted.
type Event struct {
	fence.Access

	Err error
}

// Hooks returns the hooks for the store's options.
func (t *Told) Hooks() *fence.Hooks {
	return &fence.Hooks{
		Accepted: func(_ context.Context, a fence.Access) { t.add(Event{a, nil}) },
		Refused:  func(_ context.Context, a fence.Access, err error) { t.add(Event{a, err}) },
	}
}

func (t *Told) add(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, e)
}

// take returns the events since the last call.
func (t *Told) take() []Event {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.all
	t.all = nil
	return all
}

// Last returns the one event since the last call. It fails if there is none, or more than one.
func (t *Told) Last() (Event, error) {
	all := t.take()
	if len(all) != 1 {
		return Event{}, fmt.Errorf("%w: %d events, want 1: %v", errTold, len(all), all)
	}
	return all[0], nil
}
