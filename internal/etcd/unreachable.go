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

// explain adds to an error of the server what is wrong with the client, if the server's text does not say it.
func explain(err error) error {
	if errors.Is(err, rpctypes.ErrUserEmpty) {
		return fmt.Errorf("%w (the server requires authentication, and the client gives no user and password)", err)
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
