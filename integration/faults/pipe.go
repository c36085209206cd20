package faults

import (
	"net"
	"slices"
	"sync"
	"time"
)

// connection is one client's connection through the proxy.
type connection struct {
	client, server *net.TCPConn
	done           chan struct{}
	closing        sync.Once
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
	var pipes []*pipe
	for _, p := range []*pipe{
		{link: requests, conn: c, from: c.client, to: c.server, arrived: make(chan struct{}, 1)},
		{link: answers, conn: c, from: c.server, to: c.client, arrived: make(chan struct{}, 1)},
	} {
		pipes = append(pipes, p)
		wg.Go(p.receive)
		wg.Go(p.deliver)
	}
	wg.Wait()
	c.close(false)
	for _, p := range pipes {
		p.discard()
	}
}

// chunk is the result of one read: bytes, or the end of the stream.
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

	mu      sync.Mutex // guards queue
	queue   []chunk
	arrived chan struct{} // capacity 1; a value means that the queue has grown
}

// receive queues the bytes that arrive. It never waits for the delivery: otherwise a held direction would block the
// sender, and a network that loses packets does not do that.
func (p *pipe) receive() {
	buf := make([]byte, 32<<10)
	for {
		n, err := p.from.Read(buf)
		if n > 0 {
			p.push(chunk{bytes: slices.Clone(buf[:n]), at: time.Now()})
		}
		if err != nil {
			p.push(chunk{end: true, at: time.Now()})
			return
		}
	}
}

func (p *pipe) push(c chunk) {
	p.link.count(len(c.bytes), len(c.bytes)) // before it can be delivered
	p.mu.Lock()
	p.queue = append(p.queue, c)
	p.mu.Unlock()
	select {
	case p.arrived <- struct{}{}:
	default:
	}
}

func (p *pipe) head() (chunk, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return chunk{}, false
	}
	return p.queue[0], true
}

func (p *pipe) pop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = p.queue[1:]
}

// deliver passes each queued chunk on when it is due.
func (p *pipe) deliver() {
	for {
		c, ok := p.next()
		if !ok {
			return
		}
		if c.end {
			// The other direction may go on. If it cannot, its own pipe ends it.
			_ = p.to.CloseWrite()
			return
		}
		_, err := p.to.Write(c.bytes)
		p.link.count(0, -len(c.bytes))
		if err != nil {
			p.conn.cut()
			return
		}
	}
}

// next takes the first chunk from the queue as soon as it is due. It returns false when the connection has ended.
func (p *pipe) next() (chunk, bool) {
	for {
		// Read the state after the head, so that a change applies to every chunk that arrives after it.
		c, some := p.head()
		delay, changed := p.link.state()
		var due <-chan time.Time
		if some {
			wait := time.Until(c.at.Add(delay))
			if wait <= 0 {
				p.pop()
				return c, true
			}
			due = time.After(wait)
		}
		select {
		case <-p.conn.done:
			return chunk{}, false
		case <-changed:
		case <-p.arrived:
		case <-due:
		}
	}
}

// discard drops the undelivered bytes. The pipe must have ended.
func (p *pipe) discard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.queue {
		p.link.count(0, -len(c.bytes))
	}
	p.queue = nil
}
