package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// Unreachable is why the client has no connection, such as a certificate that one of the sides refuses: the failure of
// the last attempt to connect. It is nil if there is a connection, or if the first attempt to get one is still under way.
//
// The requests of etcd's client wait for a connection, and when they are given up they say no more than that. gRPC
// tells the reason to requests alone that do not wait, so one is made. Without a connection it fails before anything
// is sent; if there is one by then, the server is asked for its status, which changes nothing. Whether ctx has ended does
// not matter.
func (c *Conn) Unreachable(ctx context.Context) error {
	conn := c.Client.ActiveConnection()
	if conn == nil || conn.GetState() != connectivity.TransientFailure {
		return nil
	}
	// The bound is for what the client's owner has put between.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
	defer cancel()
	err := conn.Invoke(ctx, etcdserverpb.Maintenance_Status_FullMethodName,
		&etcdserverpb.StatusRequest{}, &etcdserverpb.StatusResponse{})
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

// hint says what may be behind a reason that tells nothing. In TLS 1.3 a server looks at its client's certificate when the
// client has taken the connection for made: its word against it then gets lost more often than not, since the client
// writes at the same time and fails with that. A server without TLS says nothing at all, nor does one with TLS to a
// client without.
func (e *unreachable) hint() string {
	if strings.Contains(e.reason, "tls: ") {
		return ""
	}
	if strings.Contains(e.reason, "handshake failed: EOF") {
		return "the server ended the TLS handshake at once, as one does that speaks no TLS"
	}
	for _, silent := range [...]string{"server preface: EOF", "connection reset", "broken pipe"} {
		if strings.Contains(e.reason, silent) {
			return "the server ended the connection at once, as one does that refuses the client's TLS certificate, " +
				"or that speaks TLS to a client which does not"
		}
	}
	return ""
}

// Better is the one of two that tells more, the later one if both do. Both may be nil.
func Better(before, now error) error {
	var was, is *unreachable
	if errors.As(before, &was) && errors.As(now, &is) && was.hint() == "" && is.hint() != "" {
		return before
	}
	return now
}

// Ended is the error of a call that waited until its context ended with cause. It says why there is no connection, if
// there is none.
func (c *Conn) Ended(ctx context.Context, cause error) error {
	return unconnected(cause, c.Unreachable(ctx))
}

// unconnected is the error of a call whose context ended with cause while there was no connection, unless why is nil.
func unconnected(cause, why error) error {
	if why == nil {
		return cause
	}
	return fmt.Errorf("%w (no connection: %s)", cause, why.Error()) // it is not to match
}

// explain adds to an error of the server what is wrong with the client, where the server's words hide it.
func explain(err error) error {
	if errors.Is(err, rpctypes.ErrUserEmpty) {
		return fmt.Errorf("%w (the server requires authentication, and the client gives no user and password)", err)
	}
	return err
}

// OnReconnect calls f, which must not wait, each time when the client was without any connection and has one again, until
// ctx ends.
func (c *Conn) OnReconnect(ctx context.Context, f func()) {
	conn := c.Client.ActiveConnection()
	if conn == nil {
		return
	}
	for before := connectivity.Ready; ; {
		now := conn.GetState()
		if now == connectivity.Ready && before != now {
			f()
		}
		if !conn.WaitForStateChange(ctx, now) {
			return
		}
		before = now
	}
}

// Reconnect makes a client without any connection try again now: gRPC's own back-off between attempts to
// connect grows to two minutes, longer than most leases.
func (c *Conn) Reconnect() {
	if conn := c.Client.ActiveConnection(); conn != nil && conn.GetState() == connectivity.TransientFailure {
		conn.ResetConnectBackoff()
	}
}
