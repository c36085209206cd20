package faults

import (
	"sync"
	"time"
)

// Link is one direction of a [Proxy], for all its connections. At first it passes bytes at once. Each change also
// applies to the bytes that are on their way. A Link is safe for concurrent use.
type Link struct {
	mu      sync.Mutex // guards the fields below
	delay   time.Duration
	traffic Traffic
	changed chan struct{} // closed and replaced when delay changes
}

func newLink() *Link {
	return &Link{changed: make(chan struct{})}
}

// Pass delivers bytes at once, beginning with those that were held or delayed.
func (l *Link) Pass() { l.Delay(0) }

// Delay delivers each chunk of bytes d after its arrival, in order. Delays do not add up: this is a longer wire, not a
// slower one. It also applies to bytes that were held or delayed until now.
func (l *Link) Delay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
	close(l.changed)
	l.changed = make(chan struct{})
}

// Hold keeps bytes, and the end of a connection, until Pass or Delay. Bytes that arrive after Hold has returned are
// certain to be held.
func (l *Link) Hold() { l.Delay(longer) }

// longer is longer than any test.
const longer = 1000 * time.Hour

// count counts bytes as received, and bytes that begin to wait or, if negative, wait no more.
func (l *Link) count(received, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.traffic.Received += int64(received)
	l.traffic.Waiting += int64(waiting)
}

// state returns the delay of bytes, and a channel that is closed when it changes.
func (l *Link) state() (delay time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delay, l.changed
}

// Traffic counts the bytes of a Link.
type Traffic struct {
	Received int64 // accepted from the sender
	Waiting  int64 // held or delayed at present
}

// Traffic returns what has gone through the link until now.
func (l *Link) Traffic() Traffic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.traffic
}
