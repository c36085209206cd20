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

// Session is a lease in etcd, kept alive, and the locks on it: any number of names and goroutines share one lease. It
// is safe for concurrent use. Close it when you are done.
type Session struct {
	conn      *etcd.Conn
	opts      Options
	clock     clock.Clock
	nonce     string          // in every key of this session
	revisions *etcd.Revisions // highest seen, of the era
	log       *slog.Logger    // never blocks; a lease's ID is never logged
	logs      *logqueue.Queue // behind log
	events    logqueue.Queue  // calls of Hooks.Renewed
	states    logqueue.Queue  // calls of StateChanged and CleanUp: one each for the status and a lease, so none is dropped
	reporting atomic.Bool     // a call of StateChanged waits in states
	reported  Status          // the last one that StateChanged got; only states uses it

	ending chan struct{} // closed when Close is called
	closed chan struct{} // closed when Close has finished

	// run ends when Close has finished; every goroutine of the session ends with it.
	run  context.Context //nolint:containedctx // the life of the session, not of a call
	stop context.CancelFunc
	wg   sync.WaitGroup

	inVain inVain // used by heal

	mu       sync.Mutex           // guards the fields below
	grant    *grant               // the present lease; never nil, perhaps lost
	earlier  []*grant             // lost leases that the server may still have
	healing  *healing             // not nil while a new lease is requested
	changed  chan struct{}        // closed and replaced when the status changes
	closing  bool                 // Close was called
	scopes   int                  // waiting acquisitions and functions running under Do
	idle     chan struct{}        // made by Close; closed when scopes is 0
	closeErr error                // what Close returns, valid once closed
	strays   map[string]time.Time // by queue: when its strays were last reported
	restored *RestoredError       // set when revisions went back, which ends the session
}

// NewSession takes a lease and keeps it alive until Close. It uses client and never closes it.
//
// Ctx bounds this call only: the request is retried until the server answers or ctx ends. On an error nothing is left
// running. A lease that the server may have granted although its answer was lost expires by itself.
func NewSession(ctx context.Context, client *clientv3.Client, opts Options) (*Session, error) {
	opts, err := opts.resolve(client)
	if err != nil {
		return nil, err
	}
	s := newSession(client, opts)
	waiting, stop := context.WithCancel(ctx)
	var logs sync.WaitGroup
	logs.Go(func() { s.logWhile(waiting) })
	g, err := s.takeLease(ctx)
	stop()
	logs.Wait()
	if err != nil {
		return nil, fmt.Errorf("lease: new session: %w", err)
	}
	s.start(g)
	return s, nil
}

// Adopt is [NewSession] on a lease that somebody else has taken, such as the lease of a concurrency.Session of etcd.
// The session puts its locks on that lease and renews it. Close deletes the session's keys and leaves the lease. Its
// owner may renew it too. Its granted TTL must be at least three times the margin in opts. If the adopted lease is
// lost, the session takes a lease of its own, to which opts.TTL applies.
//
// Because the adopted lease lives on, the request of an acquisition whose answer was lost may still put its key there
// after Close. For 20 minutes after such an acquisition, Close returns an error that names the key. It also returns an
// error for keys that it is not allowed to delete.
//
// Unlock a handle on an adopted lease even after its loss: as long as the owner renews the lease, nothing else removes
// the handle's key.
func Adopt(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID, opts Options) (*Session, error) {
	opts, err := opts.resolve(client)
	if err != nil {
		return nil, err
	}
	if id == clientv3.NoLease {
		return nil, errors.New("lease: adopt: id is 0, want a lease's")
	}
	s := newSession(client, opts)
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
	s.start(g)
	return s, nil
}

func newSession(client *clientv3.Client, opts Options) *Session {
	conn := etcd.Of(client)
	s := &Session{
		conn:      conn,
		opts:      opts,
		clock:     clock.System,
		nonce:     strings.ToLower(rand.Text()[:8]),
		revisions: conn.Revisions(opts.Era),
		changed:   make(chan struct{}),
		ending:    make(chan struct{}),
		closed:    make(chan struct{}),
		strays:    make(map[string]time.Time),
	}
	s.log, s.logs = logqueue.New(opts.Logger)
	s.run, s.stop = context.WithCancel(context.Background())
	return s
}

// logWhile logs after 5 s without an answer, and every 30 s from then on, until waiting ends.
func (s *Session) logWhile(waiting context.Context) {
	began := time.Now()
	for pause := 5 * time.Second; ; pause = 30 * time.Second {
		select {
		case <-time.After(pause):
			s.log.Warn("new session: etcd has not answered yet", "waited", time.Since(began), because(s.conn.Unreachable(waiting)))
		case <-waiting.Done():
			return
		}
	}
}

// takeLease asks the server for a lease until it answers or ctx ends.
func (s *Session) takeLease(ctx context.Context) (*grant, error) {
	var g *grant
	err := s.conn.Do(ctx, etcd.AttemptBound(s.opts.TTL), func(a *etcd.Attempt) error {
		// Read before the request: the server cannot have started the TTL earlier.
		sent, before := s.clock.Now(), s.revisions.Highest()
		resp, err := s.askForLease(a.Context())
		if err != nil {
			return err
		}
		if err := s.saw(before, resp.GetRevision()); err != nil {
			return err // no key is on this lease: it expires by itself
		}
		g = s.newGrant(resp.ID, time.Duration(resp.TTL)*time.Second, sent, false)
		return nil
	})
	return g, err
}

// askForLease asks for a lease under a random ID. The IDs that the server chooses are close to each other, so others
// could guess them; and while a lease has no key, etcd lets everybody revoke it or attach a key to it.
func (s *Session) askForLease(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
	ttl := int64(s.opts.TTL / time.Second)
	if s.conn.Client.ActiveConnection() == nil { // a client without a connection, made of parts
		return s.conn.Client.Grant(ctx, ttl)
	}
	for {
		var random [8]byte
		_, _ = rand.Read(random[:]) // it never fails
		// 16 digits, like the server's, so that no ID is a prefix of another.
		id := int64(binary.BigEndian.Uint64(random[:])>>2 | 1<<62)
		resp, err := clientv3.RetryLeaseClient(s.conn.Client).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: ttl, ID: id})
		if err == nil {
			return &clientv3.LeaseGrantResponse{ResponseHeader: resp.GetHeader(), ID: clientv3.LeaseID(resp.ID), TTL: resp.TTL}, nil
		}
		// The client resends by itself, so the first copy may have made this lease. It expires; take another ID.
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
	if old := s.grant; old != nil && !old.expired() {
		s.earlier = append(s.earlier, old)
	}
	s.grant = g
	s.goLocked(g.watchDeadline)
	s.goLocked(g.renew)
	s.notifyLocked()
}

// spawn runs f in a goroutine that Close waits for; f must return when its context ends. It reports false, without
// running f, once Close is about to wait for the goroutines.
func (s *Session) spawn(f func(context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.goLocked(f)
}

// goLocked is spawn under s.mu.
func (s *Session) goLocked(f func(context.Context)) bool {
	if s.run.Err() != nil {
		return false
	}
	s.wg.Go(func() { f(s.run) })
	return true
}

// reportStrays logs that a queue has keys that are no contenders, at most once in 10 minutes for each queue. It neither
// keeps nor logs those keys: they belong to somebody else and may be many and long.
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
