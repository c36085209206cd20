package lease

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/logqueue"
)

// Session is a lease in etcd, kept alive, and the locks that stand on it: any number of names and goroutines on
// one lease. It is safe for concurrent use. Close it when you are done.
type Session struct {
	conn      *etcd.Conn
	opts      Options
	clock     clock.Clock
	nonce     string          // in every key of this session
	adopted   *grant          // the lease that [Adopt] was given, lost or not; nil if none
	revisions *etcd.Revisions // of the era
	log       *slog.Logger    // never blocks
	logs      *logqueue.Queue // behind log; nil if that is silent
	events    *logqueue.Queue // of the renewals that the hooks are told of
	states    *logqueue.Queue // of what else nobody waits for: a call for the status and one for each lease, so none is dropped
	telling   atomic.Bool     // the call for the status waits in states
	told      Status          // the last that the hooks were told; of states

	ending chan struct{} // closed when Close is called
	closed chan struct{} // closed when Close has finished

	// run ends when Close has finished; every goroutine of the session ends with it.
	run  context.Context //nolint:containedctx // the life of the session, not of a call
	stop context.CancelFunc
	wg   sync.WaitGroup

	inVain inVain // heal's

	mu       sync.Mutex           // guards the fields below
	grant    *grant               // the present lease; never nil, perhaps lost
	earlier  []*grant             // lost leases of our own that the server may still have
	healing  *healing             // not nil while a new lease is being asked for
	changed  chan struct{}        // closed and replaced when the status changes
	closing  bool                 // Close was called
	stopped  bool                 // no goroutine may be started any more
	scopes   int                  // acquisitions that wait and functions that run under Do
	idle     chan struct{}        // closed by the last of them once closing
	closeErr error                // of Close, once closed
	strays   map[string]time.Time // when the strays of a queue were reported
	restored *RestoredError       // not nil once revisions went back, which ends the session
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
	stop := s.sayThatItWaits(ctx)
	g, err := s.takeLease(ctx)
	stop()
	if err != nil {
		return nil, fmt.Errorf("lease: new session: %w", err)
	}
	s.start(g)
	return s, nil
}

// Adopt is [NewSession] on a lease that somebody else has taken, such as that of a session of etcd's concurrency
// package: locks are put on it and it is renewed, but Close leaves it as it is, less the locks. Its owner may
// renew it too. It must have been granted at least three times the margin in opts; opts.TTL is for a lease of the session's
// own, which the session takes if it loses the adopted one.
//
// On a lease that lives on, the key of an acquisition whose answer was lost may appear when the session is closed. Close
// then returns an error that names the key, for 20 minutes after such an acquisition; so it does for keys that it is not
// allowed to delete.
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
	err = s.conn.Do(ctx, etcd.AttemptBound(opts.TTL), func(a *etcd.Attempt) error {
		sent := s.clock.Now()
		resp, err := etcd.RenewOnce(a.Context(), client, id)
		if err == nil {
			g = s.newGrant(id, time.Duration(resp.TTL)*time.Second, sent, true)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lease: adopt lease %x: %w", int64(id), err)
	}
	if g.margin > g.ttl/3 {
		return nil, fmt.Errorf("lease: Options.Margin is %v, want 0 to a third of the adopted lease's TTL, %v", g.margin, g.ttl/3)
	}
	s.adopted = g
	s.start(g)
	return s, nil
}

func newSession(client *clientv3.Client, opts Options, clk clock.Clock) *Session {
	conn := etcd.Of(client)
	s := &Session{
		conn:      conn,
		opts:      opts,
		clock:     clk,
		nonce:     strings.ToLower(rand.Text()[:8]),
		revisions: conn.Revisions(opts.Era),
		changed:   make(chan struct{}),
		ending:    make(chan struct{}),
		closed:    make(chan struct{}),
		strays:    make(map[string]time.Time),
	}
	s.log, s.logs = logqueue.New(opts.Logger)
	s.events, s.states = new(logqueue.Queue), new(logqueue.Queue)
	s.run, s.stop = context.WithCancel(context.Background())
	return s
}

// sayThatItWaits logs that the server has not answered after some seconds, and each half minute from then on, until it is stopped.
func (s *Session) sayThatItWaits(ctx context.Context) (stop func()) {
	const first, again = 5 * time.Second, 30 * time.Second
	ctx, cancel := context.WithCancel(ctx)
	began, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		for pause := first; ; pause = again {
			select {
			case <-time.After(pause):
				s.log.Warn("new session: etcd has not answered yet", "waited", time.Since(began), "err", s.conn.Unreachable(ctx))
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// takeLease asks the server for a lease until it answers or ctx ends.
func (s *Session) takeLease(ctx context.Context) (*grant, error) {
	var g *grant
	err := s.conn.Do(ctx, etcd.AttemptBound(s.opts.TTL), func(a *etcd.Attempt) error {
		// Before the request: the server cannot have begun to count earlier.
		sent, before := s.clock.Now(), s.revisions.Highest()
		resp, err := s.askForLease(a.Context())
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

// askForLease asks for a lease with an ID of its own choosing. The server's are close to each other, so that others could
// guess it; and as long as a lease holds nothing, etcd lets everybody revoke it or attach a key to it.
func (s *Session) askForLease(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
	ttl := int64(s.opts.TTL / time.Second)
	if s.conn.Client.ActiveConnection() == nil { // a client that is made of parts
		return s.conn.Client.Grant(ctx, ttl)
	}
	for {
		var random [8]byte
		_, _ = rand.Read(random[:])                                // it never fails
		id := int64(binary.BigEndian.Uint64(random[:])>>2 | 1<<62) // 16 digits, as the server's: none begins with another
		resp, err := clientv3.RetryLeaseClient(s.conn.Client).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: ttl, ID: id})
		if err == nil {
			return &clientv3.LeaseGrantResponse{ResponseHeader: resp.GetHeader(), ID: clientv3.LeaseID(resp.ID), TTL: resp.TTL}, nil
		}
		// The client sends the request again by itself: the lease may be there by the first sending. It expires.
		if err = clientv3.ContextError(ctx, err); !errors.Is(err, rpctypes.ErrLeaseExist) {
			return nil, err
		}
	}
}

// start makes g the present lease.
func (s *Session) start(g *grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startLocked(g)
}

// startLocked is start under s.mu.
func (s *Session) startLocked(g *grant) {
	s.earlier = slices.DeleteFunc(s.earlier, (*grant).expired)
	if old := s.grant; old != nil && !old.adopted && !old.expired() {
		s.earlier = append(s.earlier, old)
	}
	s.grant = g
	s.goLocked(g.watchDeadline)
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

// reportStrays logs, once in a while for each queue, that there are keys in it that are no contenders. Nothing is kept or
// logged of the keys themselves, which are somebody else's and may be many and long.
func (s *Session) reportStrays(prefix string, n int) {
	const most, pause = 1000, 10 * time.Minute
	s.mu.Lock()
	known := time.Since(s.strays[prefix]) < pause
	if !known {
		if len(s.strays) >= most {
			clear(s.strays)
		}
		s.strays[prefix] = time.Now()
	}
	s.mu.Unlock()
	if !known {
		s.log.Warn("keys in the queue are no contenders and are passed over; etcd's own locks wait for them",
			"below", clip.To(prefix, shown), "keys", n)
	}
}
