package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/etcd"
)

// verdict is what an error must mean.
type verdict struct{ refused, again bool }

var (
	refusedFinal = verdict{refused: true}
	refusedAgain = verdict{refused: true, again: true}
	unknownFinal = verdict{}
	unknownAgain = verdict{again: true}
)

func requireVerdict(t *testing.T, want verdict, err error) {
	t.Helper()
	for _, err := range []error{err, fmt.Errorf("x: %w", err), errors.Join(err, nil)} {
		require.Equal(t, want, verdict{etcd.Refused(err), etcd.Transient(err)}, "%v", err)
	}
}

// ofServers are the errors in etcd's list, by their code in 3.7.
var ofServers = map[string]map[string]verdict{
	"InvalidArgument": {
		"key is not provided": refusedFinal, "key not found": refusedFinal, "value is provided": refusedFinal, "lease is provided": refusedFinal,
		"too many operations in txn request": refusedFinal, "duplicate key given in txn request": refusedFinal,
		"invalid client api version": refusedFinal, "invalid sort option": refusedFinal, "request is too large": refusedFinal,
		"given member URLs are invalid": refusedFinal, "user name is empty": refusedFinal, "role name is empty": refusedFinal,
		"authentication failed, invalid user ID or password": refusedFinal, "permission not given": refusedFinal,
		"invalid auth management": refusedFinal, "revision of auth store is old": refusedAgain,
		"wrong downgrade target version format": refusedFinal, "invalid downgrade target version": refusedFinal,
	},
	"OutOfRange": {
		"mvcc: required revision has been compacted": refusedFinal, "mvcc: required revision is a future revision": refusedFinal,
		"too large lease TTL": refusedFinal,
	},
	"NotFound": {"requested lease not found": refusedFinal, "member not found": refusedFinal},
	"FailedPrecondition": {
		"lease already exists": refusedFinal, "not leader": refusedAgain, "not capable": refusedAgain,
		"rpc not supported for learner": refusedAgain, "bad leader transferee": refusedFinal, "cluster ID mismatch": refusedFinal,
		"member ID already exist": refusedFinal, "Peer URLs already exists": refusedFinal,
		"re-configuration failed due to not enough started members":      refusedFinal,
		"can only promote a learner member":                              refusedFinal,
		"can only promote a learner member which is in sync with leader": refusedFinal, "too many learner members in cluster": refusedFinal,
		"root user does not exist": refusedFinal, "root user does not have root role": refusedFinal, "user name already exists": refusedFinal,
		"user name not found": refusedFinal, "role name already exists": refusedFinal, "role name not found": refusedFinal,
		"role is not granted to the user": refusedFinal, "permission is not granted to the role": refusedFinal,
		"authentication is not enabled": refusedFinal, "cluster version not found during downgrade": refusedFinal,
		"cluster has a downgrade job in progress": refusedFinal, "no inflight downgrade job": refusedFinal,
	},
	"PermissionDenied":  {"permission denied": refusedFinal},
	"Unauthenticated":   {"invalid auth token": refusedFinal},
	"ResourceExhausted": {"mvcc: database space exceeded": unknownAgain, "too many requests": refusedAgain},
	"Canceled":          {"watch canceled": unknownAgain, "request canceled": unknownAgain},
	"DeadlineExceeded":  {"context deadline exceeded": unknownAgain},
	"DataLoss":          {"corrupt cluster": unknownAgain},
	"Unavailable": {
		"no leader": unknownAgain, "leader changed": unknownAgain, "server stopped": unknownAgain, "request timed out": unknownAgain,
		"request timed out, possibly due to previous leader failure":     unknownAgain,
		"request timed out, possibly due to connection lost":             unknownAgain,
		"request timed out, waiting for the applied index took too long": unknownAgain,
		"unhealthy cluster": unknownAgain,
	},
}

// ofServers is complete: it has all errors of etcd's own source.
func TestVerdict_ofServers(t *testing.T) {
	entry := reflect.ValueOf(rpctypes.Error).Pointer()
	file, _ := runtime.FuncForPC(entry).FileLine(entry)
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	names := make(map[string]codes.Code)
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		names[code.String()] = code
	}
	found := regexp.MustCompile(`status\.Error\(codes\.(\w+), "etcdserver: ([^"]+)"\)`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(found), 60)
	for _, f := range found {
		want, known := ofServers[f[1]][f[2]]
		require.True(t, known, "no verdict on %v", f)
		raw := status.Error(names[f[1]], "etcdserver: "+f[2])
		requireVerdict(t, want, raw)
		requireVerdict(t, want, rpctypes.Error(raw))
		// Through etcd's own proxy, and from some versions of the server, the text comes with code Unknown.
		told, byText := rpctypes.Error(status.Error(codes.Unknown, "etcdserver: "+f[2])).(rpctypes.EtcdError) //nolint:errorlint // as it is made
		if byText {
			requireVerdict(t, want, told)
		}
	}
}

// Errors outside etcd's list: with code Unknown, or from gRPC, proxies and our own code.
func TestVerdict_ofOthers(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want verdict
	}{
		{status.Error(codes.Unknown, "raft proposal dropped"), unknownAgain},
		{status.Error(codes.Unknown, "raft: stopped"), unknownAgain},
		{status.Error(codes.Unknown, "mvcc: closed"), unknownAgain},
		{status.Error(codes.Unknown, "etcdserver: request cancelled"), unknownAgain},
		{status.Error(codes.Unknown, "not a primary lessor"), unknownAgain},
		{status.Error(codes.Unknown, "waiting for node to catch up its applied index has timed out"), unknownAgain},
		{status.Error(codes.Unknown, ""), unknownAgain},
		{status.Error(codes.Unknown, "auth: authentication failed, password was given for no password user"), refusedFinal},

		{status.Error(codes.Unavailable, "etcdserver: not capable"), refusedAgain}, // before 3.7
		{status.Error(codes.Unavailable, "etcdserver: rpc not supported for learner"), refusedAgain},
		{status.Error(codes.Unavailable, "transport is closing"), unknownAgain},
		{status.Error(codes.ResourceExhausted, "trying to send message larger than max (2 vs. 1)"), refusedFinal},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2 vs. 1)"), unknownFinal},
		{status.Error(codes.ResourceExhausted, "stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM"), unknownAgain},
		{status.Error(codes.Canceled, ""), unknownAgain},
		{status.Error(codes.DeadlineExceeded, ""), unknownAgain},
		{status.Error(codes.Internal, ""), unknownAgain},
		{status.Error(codes.Aborted, ""), unknownAgain},
		{status.Error(codes.AlreadyExists, ""), unknownAgain},
		{status.Error(codes.Code(99), ""), unknownAgain},
		{status.Error(codes.Unimplemented, ""), refusedFinal},
		{status.Error(codes.Unauthenticated, ""), refusedFinal},

		// The text of an error does not make it a refusal.
		{status.Error(codes.Unavailable, "etcdserver: permission denied "), unknownAgain},
		{fmt.Errorf("%w (last attempt: %s)", context.Canceled, "etcdserver: permission denied"), unknownAgain},

		{context.DeadlineExceeded, unknownAgain},
		{context.Canceled, unknownAgain},
		{errors.New("x"), unknownFinal},
		{etcd.ErrNotSent, refusedAgain},
		{errors.Join(etcd.ErrNotSent, context.Canceled), refusedAgain},
		{etcd.Repeated(rpctypes.ErrPermissionDenied), unknownFinal},
		{etcd.Repeated(rpctypes.ErrTooManyRequests), unknownAgain},
		{etcd.Repeated(etcd.ErrNotSent), unknownAgain},
		{etcd.Repeated(rpctypes.ErrNoSpace), unknownAgain},
	} {
		requireVerdict(t, tc.want, tc.err)
	}
	require.False(t, etcd.Transient(nil))
	require.False(t, etcd.Refused(nil))
	require.ErrorIs(t, etcd.Repeated(rpctypes.ErrPermissionDenied), rpctypes.ErrPermissionDenied)
	require.EqualError(t, etcd.Repeated(rpctypes.ErrPermissionDenied), rpctypes.ErrPermissionDenied.Error())
}

// ambiguous are the codes after which a request may have been carried out: the connection or the caller's time ended,
// or a proxy failed.
var ambiguous = map[codes.Code]bool{
	codes.Canceled: true, codes.Unknown: true, codes.DeadlineExceeded: true, codes.Aborted: true,
	codes.Internal: true, codes.Unavailable: true, codes.DataLoss: true, codes.AlreadyExists: true,
}

// An error after which a request may have been carried out never counts as a refusal, however it is wrapped and
// whatever its text says.
func FuzzRefused(f *testing.F) {
	for code := range uint32(20) {
		f.Add(code, "transport is closing", uint8(code), false)
	}
	for i, text := range []string{
		"etcdserver: request timed out", "etcdserver: leader changed", "etcdserver: no leader", "etcdserver: server stopped",
		"etcdserver: permission denied ", "error reading from server: EOF", "received message after stream was closed", "not sent", "",
	} {
		f.Add(uint32(codes.Unavailable), text, uint8(i), i%2 == 0)
		f.Add(uint32(codes.Unknown), text, uint8(i), i%2 == 1)
	}
	f.Fuzz(func(t *testing.T, number uint32, text string, wraps uint8, told bool) {
		code := codes.Code(number)
		if code == codes.OK {
			return
		}
		err := status.Error(code, text)
		if told { // as etcd's client returns it
			err = rpctypes.Error(err)
		}
		if e, ok := err.(rpctypes.EtcdError); ok { //nolint:errorlint // as it is made
			code = e.Code() // the server's own errors are recognised by their text
		}
		err = wrapped(err, wraps)
		if ambiguous[code] || code > codes.Unauthenticated {
			require.False(t, etcd.Refused(err), "%v", err)
		}
		require.False(t, etcd.Refused(wrapped(etcd.Repeated(err), wraps)))

		for _, ended := range []error{context.Canceled, context.DeadlineExceeded, errors.New(text)} {
			require.False(t, etcd.Refused(wrapped(ended, wraps)))
		}
		require.True(t, etcd.Refused(wrapped(etcd.ErrNotSent, wraps)))
	})
}

// wrapped puts up to three layers around err, of up to three kinds.
func wrapped(err error, how uint8) error {
	for range 3 {
		switch how & 3 {
		case 1:
			err = fmt.Errorf("lease: %w", err)
		case 2:
			err = errors.Join(err, nil)
		case 3:
			err = fmt.Errorf("%w (last attempt: %s)", err, "permission denied")
		}
		how >>= 2
	}
	return err
}
