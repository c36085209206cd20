package faults

import (
	"context"
	"sync"
	"time"
)

// Link is one direction of a [Proxy], for all its connections. At first it passes bytes at once. Each change also
// applies to the bytes that are on their way. A Link is safe for concurrent use.
type Link struct {
	mu        sync.Mutex // guards the fields below
	held      bool
	delay     time.Duration
	received  int64
	delivered int64
	dropped   int64
	changed   chan struct{} // closed and replaced when held or delay change
	counted   chan struct{} // closed and replaced when the counts change
}

func newLink() *Link {
	return &Link{changed: make(chan struct{}), counted: make(chan struct{})}
}

// Pass delivers bytes at once, beginning with those that were held or delayed.
func (l *Link) Pass() { l.set(false, 0) }

// Delay delivers each chunk of bytes d after its arrival, in order. Delays do not add up: this is a longer wire, not a
// slower one. It also applies to bytes that were held or delayed until now.
func (l *Link) Delay(d time.Duration) { l.set(false, d) }

// Hold keeps bytes, and the end of a connection, until Pass or Delay. Bytes that arrive after Hold has returned are
// certain to be held.
func (l *Link) Hold() { l.set(true, 0) }

func (l *Link) set(held bool, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held, l.delay = held, d
	close(l.changed)
	l.changed = make(chan struct{})
}

// count changes the counts and wakes those that wait for it.
func (l *Link) count(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.counted)
	l.counted = make(chan struct{})
}

// state returns whether bytes are held, their delay, and a channel that is closed when either changes.
func (l *Link) state() (held bool, delay time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held, l.delay, l.changed
}

// Traffic counts the bytes of a Link.
type Traffic struct {
	Received  int64 // accepted from the sender
	Delivered int64 // passed on
	Dropped   int64 // discarded because the connection ended
}

// Waiting returns the number of bytes that are held or delayed.
func (t Traffic) Waiting() int64 { return t.Received - t.Delivered - t.Dropped }

// Traffic returns what has gone through the link until now.
func (l *Link) Traffic() Traffic {
	t, _ := l.traffic()
	return t
}

func (l *Link) traffic() (Traffic, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Traffic{Received: l.received, Delivered: l.delivered, Dropped: l.dropped}, l.counted
}

// Await waits until the traffic is as wanted, for instance until something is held:
//
//	err := proxy.Answers.Await(ctx, func(t faults.Traffic) bool { return t.Waiting() > 0 })
//
// The bytes that wait need not be the test's message: HTTP/2 also sends frames of its own. If ctx ends first, Await
// returns the cause.
func (l *Link) Await(ctx context.Context, wanted func(Traffic) bool) error {
	for {
		t, counted := l.traffic()
		if wanted(t) {
			return nil
		}
		select {
		case <-counted:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
