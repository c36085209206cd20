package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// party is a number of candidates for one election that campaign again and again, in this process and in others, and what
// is known of their leaderships.
type party struct {
	t       *testing.T
	srv     *etcdtest.Server
	name    string
	quit    context.Context //nolint:containedctx // of all who campaign in this process
	end     context.CancelFunc
	running sync.WaitGroup // those
	next    chan *term     // of capacity 1: each leadership as it begins
	members []*member      // those of other processes

	mu    sync.Mutex // guards the field below, and the terms' fields that say so
	terms []*term
}

// member is one candidate of a party.
type member struct {
	value string
	proxy *faults.Proxy // between it and the server
	kill  func()        // ends its process at once; nil in this one
	leave func()        // ends its process in order; nil in this one
}

// term is one leadership.
type term struct {
	*member

	token  fence.Token
	lease  clientv3.LeaseID
	ctx    context.Context //nolint:containedctx // of the leadership; nil in another process
	resign func()
	close  func()        // ends the session in order; nil in another process
	over   chan struct{} // closed when it has ended

	// Guarded by the party's mu.
	revoked     bool   // an operator lets the next one in before this one can know
	begin, last int64  // when it was live for certain, see monotonic; 0 if it was not seen so
	cause       string // of its end
}

func newParty(t *testing.T, srv *etcdtest.Server, name string) *party {
	t.Helper()
	p := &party{t: t, srv: srv, name: name, next: make(chan *term, 1)}
	p.quit, p.end = context.WithCancel(t.Context())
	return p
}

// monotonic is the time on a clock that all processes of the machine share, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // there always is one
	}
	return ts.Nano()
}

// watchLife tells over and over of a time at which the leadership was live, until it is not. It may stay behind the
// truth and never runs ahead of it: the clock is read before the context.
func watchLife(ctx context.Context, live func(at int64)) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		at := monotonic()
		if ctx.Err() != nil {
			return
		}
		live(at)
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// causeOf is why a leadership ended, in words that pass between processes.
func causeOf(ctx context.Context) string {
	err := context.Cause(ctx)
	if lost, ok := errors.AsType[*lease.LostError](err); ok {
		return lost.Reason.String()
	}
	if errors.Is(err, election.ErrResigned) {
		return "resigned"
	}
	return fmt.Sprint(err)
}

// began takes in a leadership.
func (p *party) began(tm *term) {
	tm.over = make(chan struct{})
	p.mu.Lock()
	if tm.ctx != nil && tm.ctx.Err() == nil { // looked at before the others': two that are live were so at this moment
		for _, o := range p.terms {
			if o.ctx != nil && o.ctx.Err() == nil && !o.revoked {
				p.t.Errorf("two live leaders: %s with %s and %s with %s", o.value, o.token, tm.value, tm.token)
			}
		}
	}
	p.terms = append(p.terms, tm)
	p.mu.Unlock()
	select {
	case p.next <- tm:
	case <-p.quit.Done():
	}
}

// live takes in that a leadership was live at a time.
func (p *party) live(tm *term, at int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if tm.begin == 0 {
		tm.begin = at
	}
	tm.last = at
}

// ended takes in why it is not any more.
func (p *party) ended(tm *term, cause string) {
	p.mu.Lock()
	tm.cause = cause
	p.mu.Unlock()
	close(tm.over)
}

// causeOf is why a leadership has ended.
func (p *party) causeOf(tm *term) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return tm.cause
}

// await waits for the next leadership.
func (p *party) await() *term {
	p.t.Helper()
	select {
	case tm := <-p.next:
		return tm
	case <-time.After(patience):
		require.FailNow(p.t, "nobody leads", "the queue: %v", p.srv.KeyValues(p.t, p.name+"/"))
		return nil
	}
}

// disband has all members go in order, and waits for that.
func (p *party) disband() {
	p.end()
	p.running.Wait()
	for _, m := range p.members {
		m.leave()
	}
}

// check fails the test, but goes on, if err is not nil: members are goroutines of their own.
func (p *party) check(err error, m *member) {
	if err != nil {
		p.t.Errorf("%s: %v", m.value, err)
	}
}

// connected is a member with its own way to the server.
func (p *party) connected(value string) *member {
	return &member{value: value, proxy: faults.NewProxy(p.t, p.srv.Endpoint())}
}

// inThisProcess adds a member that campaigns by campaign until the end, on a new session each time that its session is closed.
func (p *party) inThisProcess(value string, campaign func(m *member, s *lease.Session)) {
	m := p.connected(value)
	client := p.srv.Client(p.t, etcdtest.Via(m.proxy.Addr()))
	p.running.Go(func() {
		for p.quit.Err() == nil {
			s, err := lease.NewSession(p.quit, client, resolved(lease.Options{TTL: faultTTL}))
			if err != nil {
				assert.ErrorIs(p.t, err, context.Canceled)
				return
			}
			campaign(m, s)
			p.check(p.closed(s), m)
		}
	})
}

// closed ends a session in order.
func (p *party) closed(s *lease.Session) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.quit), patience)
	defer cancel()
	return s.Close(ctx)
}

// lead is what a member of this process does while it leads: it waits. It returns when the leadership has ended or it is
// asked to resign; byItself says whether it is left to the caller to do so.
func (p *party) lead(ctx context.Context, m *member, s *lease.Session, l *election.Leadership, byItself bool) {
	asked := make(chan struct{})
	tm := &term{
		member: m, token: l.Token(), lease: leaseOf(p.t, p.name, l.Key()), ctx: ctx,
		resign: sync.OnceFunc(func() {
			if byItself {
				p.check(l.Resign(ctx), m)
			}
			close(asked)
		}),
		close: func() { p.check(p.closed(s), m) }, //nolint:contextcheck // it outlives the leadership
	}
	p.began(tm)
	p.running.Go(func() {
		watchLife(ctx, func(at int64) { p.live(tm, at) })
		p.ended(tm, causeOf(ctx))
	})
	select {
	case <-asked:
	case <-ctx.Done():
	case <-p.quit.Done():
	}
}

// byCampaign campaigns again and again.
func (p *party) byCampaign(m *member, s *lease.Session) {
	for {
		l, err := election.Campaign(p.quit, s, p.name, election.Options{Value: m.value})
		switch {
		case p.quit.Err() != nil && err != nil, errors.Is(err, lease.ErrClosed):
			return
		case errors.Is(err, lease.ErrLost):
			continue
		case err != nil:
			p.check(err, m)
			return
		}
		p.lead(l.Context(), m, s, l, false)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.quit), patience)
		if err := l.Resign(ctx); err != nil {
			assert.ErrorIs(p.t, err, lease.ErrLost, m.value)
		}
		cancel()
	}
}

// passBy has somebody who is no member campaign again and again, and give up at any moment or resign at once.
func (p *party) passBy(seed uint64) {
	p.t.Helper()
	s := newSession(p.t, p.srv.Client(p.t), lease.Options{TTL: minTTL}) // a third of which its key may stand, if it enters late
	random := rand.New(rand.NewPCG(seed, 2))
	p.running.Go(func() {
		for p.quit.Err() == nil {
			ctx, cancel := context.WithTimeout(p.quit, time.Duration(5+random.IntN(30))*time.Millisecond)
			l, err := election.Campaign(ctx, s, p.name, election.Options{Value: "passer-by"})
			cancel()
			if err == nil {
				err = l.Resign(p.quit)
			}
			if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				p.t.Errorf("passer-by: %v", err)
			}
		}
		if err := p.closed(s); err != nil {
			p.t.Errorf("passer-by: %v", err)
		}
	})
}

// byRun leaves that to Run. Every other leadership resigns by itself, the others return from lead.
func (p *party) byRun(m *member, s *lease.Session) {
	n := 0
	opts := election.Options{Value: m.value, Rejoin: true}
	err := election.Run(p.quit, s, p.name, opts, func(ctx context.Context, token fence.Token) error {
		l, ok := election.FromContext(ctx)
		assert.True(p.t, ok)
		assert.Equal(p.t, token, l.Token())
		n++
		p.lead(ctx, m, s, l, n%2 == 0)
		return nil
	})
	assert.True(p.t, errors.Is(err, context.Canceled) || errors.Is(err, lease.ErrClosed), "%s: %v", m.value, err)
}
