package faults

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Proxy is a TCP proxy on the loopback interface whose two directions can be delayed, held and cut. It is safe for
// concurrent use.
type Proxy struct {
	// Requests carries what clients send to the server.
	Requests *Link
	// Answers carries what the server sends to clients.
	Answers *Link

	target   string
	listener *net.TCPListener
	wg       sync.WaitGroup

	mu          sync.Mutex // guards the fields below
	connections map[*connection]struct{}
	refusing    bool
}

// NewProxy returns a proxy to the server at target, host:port. The test's cleanup closes it. At first all bytes pass.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(tb, err)
	// The test's context ends before its cleanups, which may still need the server.
	dialing, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	p := &Proxy{
		Requests:    newLink(),
		Answers:     newLink(),
		target:      target,
		listener:    listener,
		connections: map[*connection]struct{}{},
	}
	p.wg.Go(func() { p.accept(dialing) })
	tb.Cleanup(func() {
		stop()
		_ = listener.Close()
		p.Refuse() // also a connection that is being made
		p.wg.Wait()
	})
	return p
}

// Addr returns the address to connect to, as host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Traffic is what a [Proxy] had to carry, in both directions.
type Traffic struct {
	Connections int   // at present
	Received    int64 // bytes that it has accepted from the senders until now
	Waiting     int64 // bytes that it holds or delays at present
}

// Traffic adds what the proxy had to carry to sum.
func (p *Proxy) Traffic(sum *Traffic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum.Connections += len(p.connections)
	sum.Received += p.Requests.received.Load() + p.Answers.received.Load()
	for c := range p.connections {
		sum.Waiting += c.waiting.Load()
	}
}

// BlackHole holds both directions: connections stay open, new ones are accepted, and no bytes get through.
func (p *Proxy) BlackHole() {
	p.Requests.Hold()
	p.Answers.Hold()
}

// Cut resets all present connections. Bytes on their way are lost. New connections are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.connections {
		c.cut()
	}
}

// Refuse resets all present connections and each new one. Calls of an etcd client that were under way fail; new calls
// wait.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	p.refusing = true
	p.mu.Unlock()
	p.Cut()
}

// Restore accepts connections again and lets both directions pass.
func (p *Proxy) Restore() {
	p.mu.Lock()
	p.refusing = false
	p.mu.Unlock()
	p.Requests.Pass()
	p.Answers.Pass()
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.AcceptTCP()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(ctx, client) })
	}
}

func (p *Proxy) serve(ctx context.Context, client *net.TCPConn) {
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", p.target)
	if err != nil {
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	c := &connection{client: client, server: server.(*net.TCPConn), done: make(chan struct{})}
	p.mu.Lock()
	if p.connections[c] = struct{}{}; p.refusing {
		c.cut()
	}
	p.mu.Unlock()
	c.run(p.Requests, p.Answers)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connections, c)
}

// Link is one direction of a [Proxy], for all its connections. At first it passes bytes at once. Each change also
// applies to the bytes that are on their way. A Link is safe for concurrent use.
type Link struct {
	received atomic.Int64 // bytes

	mu      sync.Mutex // guards the fields below
	delay   time.Duration
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

// state returns the delay of bytes, and a channel that is closed when it changes.
func (l *Link) state() (delay time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delay, l.changed
}

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
