// Package etcd is this library's layer over etcd's client: it retries requests, batches transactions into shared
// commits, moves watches off a member that has stopped answering, and renews leases.
//
// A [Conn] wraps a client. An [Attempt] is one try at a request, and [Conn.Do] makes attempts until one of them
// succeeds or fails finally. One table, at judge, decides what an error means: [Refused] and [Transient] read it. A
// [Line] carries the transactions of one lease, [Streams] hold the watches of a client, and a [KeepAlive] sends the
// renewals of a lease.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// Conn is a client with its retries and its watch streams. All Conns of one client share the state in shared. A Conn
// is safe for concurrent use; it needs no closing, and it never closes the client.
type Conn struct {
	Client *clientv3.Client

	raw pb.KVClient // see rawOf
	*shared
}

// shared is the state of one client, which lasts as long as the client. It must not refer to the client, but for its
// lookout: clients refers to it, and the client would never be collected.
type shared struct {
	mu        sync.Mutex // guards the fields below
	streams   map[time.Duration]*Streams
	revisions map[uint16]*Revisions
	lookout   *Lookout // nil while nobody observes
}

// clients holds the shared state of each client that is in use.
var clients sync.Map // weak.Pointer[clientv3.Client] → *shared

// Of returns a Conn for a client.
func Of(client *clientv3.Client) *Conn {
	key := weak.Make(client)
	s, known := clients.Load(key)
	if !known {
		s, known = clients.LoadOrStore(key, &shared{
			streams: make(map[time.Duration]*Streams), revisions: make(map[uint16]*Revisions),
		})
	}
	if !known {
		runtime.AddCleanup(client, func(key weak.Pointer[clientv3.Client]) { clients.Delete(key) }, key)
	}
	return &Conn{client, rawOf(client), s.(*shared)}
}

// endpoints is the number of the client's endpoints, or the usual number if the client lists none.
func (c *Conn) endpoints() int {
	const usual = 3
	if n := len(c.Client.Endpoints()); n > 0 {
		return n
	}
	return usual
}

// Streams returns the watch streams of the leases with this patience, see [NewStreams]. Leases with different TTLs
// use different streams: a member that is too slow for a short lease is no reason to reopen the watches of a long
// one.
func (s *shared) Streams(patience time.Duration) *Streams {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[patience] == nil {
		s.streams[patience] = NewStreams("lease-"+patience.String(), patience)
	}
	return s.streams[patience]
}

// Revisions is the highest revision that was seen through a client in one era. A session that replaces another one
// continues with the same Revisions, so it too notices a restore of etcd from an older snapshot.
type Revisions struct{ highest atomic.Int64 }

// Revisions returns those of an era.
func (s *shared) Revisions(era uint16) *Revisions {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revisions[era] == nil {
		s.revisions[era] = new(Revisions)
	}
	return s.revisions[era]
}

// Highest is the highest revision that was seen.
func (r *Revisions) Highest() int64 { return r.highest.Load() }

// Raise records a revision that some member has reported. It reports false if a higher one was known before.
func (r *Revisions) Raise(rev int64) bool {
	for {
		highest := r.highest.Load()
		if rev <= highest {
			return rev == highest
		}
		if r.highest.CompareAndSwap(highest, rev) {
			return true
		}
	}
}

// AttemptBound is the time limit of the first attempt at a request of a lease: a quarter of the TTL, but at least half
// a second and at most five seconds. It differs from the third of the TTL between renewals on purpose: the client
// takes its endpoints in turn, so a retry in step with the renewals would meet the same endpoint each time.
func AttemptBound(ttl time.Duration) time.Duration {
	return min(max(ttl/4, 500*time.Millisecond), 5*time.Second)
}

// CheckClient refuses a nil client, a client without a KV, a Watcher or a Lease, and one of which only some of these have
// a namespace. With a bare Lease, the lease would list the session's keys under other names; with a bare Watcher, no
// waiter would learn of its turn, and no observer of a change. Package clientv3/namespace does not export its types, so
// the check goes by their names.
func CheckClient(client *clientv3.Client) error {
	if client == nil {
		return errors.New("client is nil, want an etcd client")
	}
	var inside, bare []string
	for _, part := range []struct {
		name, wrapper string
		is            any
	}{
		{"KV", "*namespace.kvPrefix", client.KV},
		{"Watcher", "*namespace.watcherPrefix", client.Watcher},
		{"Lease", "*namespace.leasePrefix", client.Lease},
	} {
		switch {
		case part.is == nil:
			return fmt.Errorf("client.%s is nil, want a client of clientv3.New", part.name)
		case fmt.Sprintf("%T", part.is) == part.wrapper:
			inside = append(inside, part.name)
		default:
			bare = append(bare, part.name)
		}
	}
	if len(inside) == 0 || len(bare) == 0 {
		return nil
	}
	return fmt.Errorf("client: %v has a namespace and %v has none, want KV, Watcher and Lease in the same one (package clientv3/namespace) or none of them",
		inside, bare)
}

// Unreachable returns why the client has no connection, such as a certificate that one of the sides refuses: the
// failure of the last attempt to connect. It returns nil if there is a connection or the first attempt to connect is
// still under way. It also works after ctx has ended.
//
// The requests of etcd's client wait for a connection, and their errors do not say why there was none. gRPC gives the
// reason only to requests that do not wait, so Unreachable sends one. Without a connection it fails before anything
// is sent. If there is a connection by then, the request asks the server for its status, which changes nothing.
func (c *Conn) Unreachable(ctx context.Context) error {
	conn := c.Client.ActiveConnection()
	if conn == nil || conn.GetState() != connectivity.TransientFailure {
		return nil
	}
	// The bound is for interceptors of the client's owner, which may block.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
	defer cancel()
	err := conn.Invoke(ctx, pb.Maintenance_Status_FullMethodName, &pb.StatusRequest{}, &pb.StatusResponse{})
	if status.Code(err) != codes.Unavailable {
		return nil
	}
	return &unreachable{reason: status.Convert(err).Message()}
}

// unreachable is the failure of an attempt to connect.
type unreachable struct{ reason string }

func (e *unreachable) Error() string {
	if hint := e.hint(); hint != "" {
		return e.reason + "; " + hint
	}
	return e.reason
}

// hint says what may be the cause of a reason that does not tell. In TLS 1.3 the server checks the client's
// certificate after the client has finished its handshake. The server's alert about it is lost more often than not,
// because the client is writing by then and fails with the broken connection. If only one of the two sides uses TLS,
// the server sends no reason at all.
func (e *unreachable) hint() string {
	if strings.Contains(e.reason, "tls: ") {
		return ""
	}
	if strings.Contains(e.reason, "handshake failed: EOF") {
		return "the server closed the connection during the TLS handshake, as a server without TLS does"
	}
	for _, silent := range [...]string{"server preface: EOF", "connection reset", "broken pipe"} {
		if strings.Contains(e.reason, silent) {
			return "the server closed the connection at once, as it does if it refuses the client's TLS certificate, " +
				"or if it requires TLS and the client does not use it"
		}
	}
	return ""
}

// Better returns the more telling of two errors: now, unless both are results of [Conn.Unreachable] and only before
// gives a reason that needs no hint. Both may be nil.
func Better(before, now error) error {
	var was, is *unreachable
	if errors.As(before, &was) && errors.As(now, &is) && was.hint() == "" && is.hint() != "" {
		return before
	}
	return now
}

// Ended returns the error of a call that waited until its context ended with cause. If there is no connection, the
// error says why.
func (c *Conn) Ended(ctx context.Context, cause error) error {
	return unconnected(cause, c.Unreachable(ctx))
}

// unconnected is the error of a call whose context ended with cause while there was no connection, unless why is nil.
func unconnected(cause, why error) error {
	if why == nil {
		return cause
	}
	return fmt.Errorf("%w (no connection: %s)", cause, why.Error()) // errors.Is must not match why
}

// explain adds to an error of the server, or of gRPC, what is wrong with the client or the server, if the text does not
// say it. It returns nil for nil.
func explain(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%w (the server requires authentication, and the client gives no user and password)", err)
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w (the server's --max-txn-ops is too low, want 4 or more, and twice the number of names of a set)", err)
	case err != nil && tooLarge(err):
		return fmt.Errorf("%w (see the client's MaxCallRecvMsgSize and MaxCallSendMsgSize, and the server's --max-request-bytes)", err)
	}
	return err
}

// Reconnect makes a client without any connection try to connect now: gRPC's own backoff between attempts to connect
// grows to two minutes, longer than most leases last.
func (c *Conn) Reconnect() {
	if conn := c.Client.ActiveConnection(); conn != nil && conn.GetState() == connectivity.TransientFailure {
		conn.ResetConnectBackoff()
	}
}
