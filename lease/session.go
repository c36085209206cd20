package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// Session is a lease in etcd, kept alive, and the locks that stand on it: any number of names and goroutines on
// one lease. It is safe for concurrent use. Whoever makes one closes it.
type Session struct {
	client  *clientv3.Client
	opts    Options
	clock   clock.Clock
	nonce   string // in every key of this session
	adopted *grant // the lease that [Adopt] was given, lost or not; nil if none
	history *history

	ending chan struct{} // closed when Close is called
	closed chan struct{} // closed when Close has finished

	// run ends when Close has finished; every goroutine of the session ends with it.
	run  context.Context //nolint:containedctx // the life of the session, not of a call
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex    // guards the fields below
	grant    *grant        // the present lease; never nil, perhaps lost
	healing  *healing      // not nil while a new lease is being asked for
	changed  chan struct{} // closed and replaced when the status changes
	closing  bool          // Close was called
	stopped  bool          // no goroutine may be started any more
	scopes   int           // acquisitions that wait and functions that run under Do
	idle     chan struct{} // closed by the last of them once closing
	closeErr error         // of Close, once closed
	strays   map[string]bool
	restored *RestoredError // not nil once revisions went back, which ends the session
}

// NewSession takes a lease and keeps it alive until Close. It uses client and never closes it.
//
// Ctx bounds this call only: the server is tried until it answers or ctx ends. On an error nothing is left
// running, and a lease that the server may have granted without our hearing of it expires by itself.
func NewSession(ctx context.Context, client *clientv3.Client, opts Options) (*Session, error) {
	opts, err := opts.resolve(client)
	if err != nil {
		return nil, err
	}
	s := newSession(client, opts, clock.System)
	g, err := s.takeLease(ctx)
	if err != nil {
		return nil, fmt.Errorf("lease: new session: %w", err)
	}
	s.start(g)
	return s, nil
}

// Adopt is [NewSession] on a lease that somebody else has taken, such as that of a session of etcd's concurrency
// package: locks are put on it and it is renewed, but Close leaves it as it is, less the locks. Its owner may
// renew it too. It must have been granted at least the margin in opts; opts.TTL is for a lease of the session's
// own, which the session takes if it loses the adopted one.
//
// Unlock a handle on an adopted lease even after its loss: as long as the owner renews the lease, nothing else
// removes the handle's key.
func Adopt(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID, opts Options) (*Session, error) {
	opts, err := opts.resolve(client)
	if err != nil {
		return nil, err
	}
	if id == clientv3.NoLease {
		return nil, errors.New("lease: adopt: id is 0, want a lease's")
	}
	s := newSession(client, opts, clock.System)
	var g *grant
	err = retry.Do(ctx, client, attemptBound(opts.TTL), func(ctx context.Context) error {
		sent := s.clock.Now()
		resp, err := retry.KeepAlive(ctx, client, id)
		if err == nil {
			g = s.newGrant(id, time.Duration(resp.TTL)*time.Second, sent, true)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lease: adopt lease %x: %w", int64(id), err)
	}
	if g.margin >= g.ttl {
		return nil, fmt.Errorf("lease: Options.Margin is %v, want 0 to less than the adopted lease's TTL, %v", g.margin, g.ttl)
	}
	s.adopted = g
	s.start(g)
	return s, nil
}

func newSession(client *clientv3.Client, opts Options, clk clock.Clock) *Session {
	s := &Session{
		client:  client,
		opts:    opts,
		clock:   clk,
		nonce:   strings.ToLower(rand.Text()[:8]),
		history: historyOf(client, opts.Era),
		changed: make(chan struct{}),
		ending:  make(chan struct{}),
		closed:  make(chan struct{}),
		strays:  make(map[string]bool),
	}
	s.run, s.stop = context.WithCancel(context.Background())
	return s
}

// takeLease asks the server for a lease until it answers or ctx ends.
func (s *Session) takeLease(ctx context.Context) (*grant, error) {
	var g *grant
	err := retry.Do(ctx, s.client, attemptBound(s.opts.TTL), func(ctx context.Context) error {
		// Before the request: the server cannot have begun to count earlier.
		sent, before := s.clock.Now(), s.history.highest.Load()
		resp, err := s.client.Grant(ctx, int64(s.opts.TTL/time.Second))
		if err != nil {
			return err
		}
		if err := s.saw(before, resp.GetRevision()); err != nil {
			return err // a lease that stands for nothing expires by itself
		}
		g = s.newGrant(resp.ID, time.Duration(resp.TTL)*time.Second, sent, false)
		return nil
	})
	return g, err
}

// start makes g the present lease.
func (s *Session) start(g *grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startLocked(g)
}

// startLocked is start under s.mu.
func (s *Session) startLocked(g *grant) {
	s.grant = g
	s.goLocked(g.renew)
	s.goLocked(g.watchConnection)
	s.notifyLocked()
}

// spawn runs f in a goroutine that Close waits for; f must return when its context ends. It reports false,
// without running f, if Close has come to its end.
func (s *Session) spawn(f func(context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.goLocked(f)
}

// goLocked is spawn under s.mu.
func (s *Session) goLocked(f func(context.Context)) bool {
	if s.stopped {
		return false
	}
	s.wg.Go(func() { f(s.run) })
	return true
}

// reportStray logs, once for each, the keys found in a queue that are no contenders.
func (s *Session) reportStray(kv *mvccpb.KeyValue) {
	const most = 1000 // remembered; after that each may be reported again
	s.mu.Lock()
	known := s.strays[string(kv.Key)]
	if len(s.strays) >= most {
		clear(s.strays)
	}
	s.strays[string(kv.Key)] = true
	s.mu.Unlock()
	if !known {
		s.opts.Logger.Warn("a key in the queue is no contender and is passed over; etcd's own locks wait for it",
			"below", clip(queue.Below(kv.Key)), "has_lease", kv.Lease != 0, "revision", kv.CreateRevision)
	}
}
