package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/etcd"
)

// ambiguous are the codes after which a request may have been carried out: the connection or the caller's time ended, or
// somebody between failed.
var ambiguous = map[codes.Code]bool{
	codes.Canceled: true, codes.Unknown: true, codes.DeadlineExceeded: true, codes.Aborted: true,
	codes.Internal: true, codes.Unavailable: true, codes.DataLoss: true, codes.AlreadyExists: true,
}

// An error after which a request may have been carried out is never taken for the word that it was not, nor is it any
// success: however it is wrapped, and whatever its text says.
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
		if told { // as etcd's client tells it
			err = rpctypes.Error(err)
		}
		if e, ok := err.(rpctypes.EtcdError); ok { //nolint:errorlint // as it is made
			code = e.Code() // one of the server's own is known by its text
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
