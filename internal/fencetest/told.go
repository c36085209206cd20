package fencetest

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// Told records calls of a store's hooks. Make it with room for some.
type Told chan Event

// Event is a call of a hook. Err is nil if the token was accepted.
type Event struct {
	fence.Access

	Err error
}

// Hooks returns the hooks for the store's options.
func (t Told) Hooks() *fence.Hooks {
	add := func(e Event) {
		select {
		case t <- e:
		default: // nobody looks at so many
		}
	}
	return &fence.Hooks{
		Accepted: func(_ context.Context, a fence.Access) { add(Event{a, nil}) },
		Refused:  func(_ context.Context, a fence.Access, err error) { add(Event{a, err}) },
	}
}

// Last returns the one event since the last call. It fails if there is none, or more than one.
func (t Told) Last() (last Event, err error) {
	n := len(t)
	for range n {
		last = <-t
	}
	if n != 1 {
		err = fmt.Errorf("the hooks were called %d times, want 1; the last is %v", n, last)
	}
	return last, err
}
