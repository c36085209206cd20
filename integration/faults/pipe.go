package faults

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// connection is one client's connection through the proxy.
type connection struct {
	client, server *net.TCPConn
	done           chan struct{}
	closing        sync.Once
	waiting        atomic.Int64 // bytes that are held or delayed, of both directions
}

// cut ends both halves with a reset: neither end takes it for an orderly end, and bytes on their way are lost.
func (c *connection) cut() { c.close(true) }

func (c *connection) close(reset bool) {
	c.closing.Do(func() {
		close(c.done)
		for _, half := range []*net.TCPConn{c.client, c.server} {
			// An error means that the other end has closed first.
			if reset {
				_ = half.SetLinger(0)
			}
			_ = half.Close()
		}
	})
}

// run transfers bytes until both directions have ended or the connection is cut.
func (c *connection) run(requests, answers *Link) {
	var wg sync.WaitGroup
	for _, p := range []*pipe{{requests, c, c.client, c.server, newQueue()}, {answers, c, c.server, c.client, newQueue()}} {
		wg.Go(p.receive)
		wg.Go(p.deliver)
	}
	wg.Wait()
	c.close(false)
}

// chunk is the result of one read: bytes, the end of the stream, or both.
type chunk struct {
	bytes []byte
	at    time.Time
	end   bool
}

// pipe is one direction of one connection.
type pipe struct {
	link     *Link
	conn     *connection
	from, to *net.TCPConn
	queue    chan chunk // what has arrived
}

// newQueue returns a large queue, since a network that loses packets does not block a sender soon.
func newQueue() chan chunk { return make(chan chunk, 4096) }

// receive queues the bytes that arrive.
func (p *pipe) receive() {
	buf := make([]byte, 32<<10)
	for ended := false; !ended; {
		n, err := p.from.Read(buf)
		ended = err != nil
		p.link.received.Add(int64(n))
		p.conn.waiting.Add(int64(n)) // before it can be delivered
		select {
		case p.queue <- chunk{bytes: slices.Clone(buf[:n]), at: time.Now(), end: ended}:
		case <-p.conn.done:
			return
		}
	}
}

// deliver passes each queued chunk on when it is due, until the connection has ended.
func (p *pipe) deliver() {
	for {
		var c chunk
		select {
		case c = <-p.queue:
		case <-p.conn.done:
			return
		}
		if !p.awaitDue(c) {
			return
		}
		_, err := p.to.Write(c.bytes)
		p.conn.waiting.Add(-int64(len(c.bytes)))
		switch {
		case err != nil:
			p.conn.cut()
			return
		case c.end:
			// The other direction may go on. If it cannot, its own pipe ends it.
			_ = p.to.CloseWrite()
			return
		}
	}
}

// awaitDue reports false if the connection has ended before the chunk is due.
func (p *pipe) awaitDue(c chunk) bool {
	for {
		delay, changed := p.link.state()
		wait := time.Until(c.at.Add(delay))
		if wait <= 0 {
			return true
		}
		select {
		case <-p.conn.done:
			return false
		case <-changed:
		case <-time.After(wait):
		}
	}
}
