package grpcfence_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/grpcfence"
)

// refused returns a status as a client receives it.
func refused(t *testing.T, code codes.Code, info *errdetails.ErrorInfo) error {
	t.Helper()
	st, err := status.New(code, "refused").WithDetails(&errdetails.Help{}, info)
	require.NoError(t, err)
	return st.Err()
}

func TestError_givesRefusalsAStatusAndKeepsWhatTheyMatch(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   codes.Code
		reason string
		md     map[string]string
	}{
		{
			&fence.StaleError{Token: 41, Highest: 54, Read: true, ByReader: true}, codes.FailedPrecondition, grpcfence.ReasonStale,
			map[string]string{"token": "41", "highest": "54", "read": "true", "byReader": "true"},
		},
		{
			&fence.OtherLockError{Resource: "orders", Token: 41, Lock: "r\xff", Follows: "a\xff"}, codes.FailedPrecondition,
			grpcfence.ReasonOtherLock,
			map[string]string{"resource": "orders", "token": "41", "lock": "r\uFFFD", "follows": "a\uFFFD"},
		},
		{grpcfence.ErrMissing, codes.FailedPrecondition, grpcfence.ReasonMissing, nil},
		{fence.ErrInvalidToken, codes.InvalidArgument, grpcfence.ReasonInvalid, nil},
		{errors.Join(status.Error(codes.Unavailable, "cannot roll back"), fence.ErrStale), codes.FailedPrecondition, grpcfence.ReasonStale, nil},
	} {
		wrapped := fmt.Errorf("at 10.0.0.7: %w", c.err)
		err := grpcfence.Error(wrapped)
		require.Equal(t, c.md, requireInfo(t, err, c.code, c.reason))
		require.ErrorIs(t, err, wrapped)
		require.NotContains(t, err.Error(), "10.0.0.7")
		require.Equal(t, err, grpcfence.Error(err), "it has a status already")
		require.Equal(t, err, grpcfence.ReadError(err), "it is read already")
	}
	other := status.Error(codes.Aborted, "other")
	for _, err := range []error{nil, io.EOF, other} {
		require.Equal(t, err, grpcfence.Error(err))
	}
}

func TestReadError_recognisesByCodeDomainAndReason(t *testing.T) {
	info := func(domain, reason string) *errdetails.ErrorInfo {
		return &errdetails.ErrorInfo{Domain: domain, Reason: reason}
	}
	stale := refused(t, codes.FailedPrecondition, info(grpcfence.Domain, grpcfence.ReasonStale))
	require.ErrorIs(t, grpcfence.ReadError(fmt.Errorf("sell: %w", stale)), fence.ErrStale)
	for _, other := range []error{
		nil, io.EOF,
		status.Error(codes.FailedPrecondition, grpcfence.ReasonStale),
		refused(t, codes.FailedPrecondition, info("other", grpcfence.ReasonStale)),
		refused(t, codes.FailedPrecondition, info(grpcfence.Domain, "OTHER")),
		refused(t, codes.FailedPrecondition, info(grpcfence.Domain, grpcfence.ReasonInvalid)),
		refused(t, codes.InvalidArgument, info(grpcfence.Domain, grpcfence.ReasonStale)),
		refused(t, codes.InvalidArgument, info(grpcfence.Domain, grpcfence.ReasonMissing)),
		refused(t, codes.InvalidArgument, info(grpcfence.Domain, grpcfence.ReasonOtherLock)),
		refused(t, codes.Aborted, info(grpcfence.Domain, grpcfence.ReasonOtherLock)),
		refused(t, codes.Aborted, info(grpcfence.Domain, grpcfence.ReasonStale)),
	} {
		require.Equal(t, other, grpcfence.ReadError(other))
	}
}

func FuzzReadError(f *testing.F) {
	f.Add(uint32(codes.FailedPrecondition), grpcfence.Domain, grpcfence.ReasonStale, "orders", "41", "54")
	f.Add(uint32(codes.FailedPrecondition), grpcfence.Domain, grpcfence.ReasonStale, "", "041", "-1")
	f.Add(uint32(codes.FailedPrecondition), grpcfence.Domain, grpcfence.ReasonStale, "", "true", "")
	f.Add(uint32(codes.FailedPrecondition), grpcfence.Domain, grpcfence.ReasonMissing, "", "", "")
	f.Add(uint32(codes.InvalidArgument), grpcfence.Domain, grpcfence.ReasonInvalid, "", "", "")
	f.Fuzz(func(t *testing.T, code uint32, domain, reason, resource, token, highest string) {
		st, err := status.New(codes.Code(code), "refused").WithDetails(&errdetails.ErrorInfo{
			Domain: domain, Reason: reason,
			Metadata: map[string]string{"resource": resource, "token": token, "highest": highest, "read": token},
		})
		if err != nil { // OK, or not UTF-8
			return
		}
		sent := st.Err()
		got := grpcfence.ReadError(sent)
		require.Equal(t, status.Convert(sent).Proto().String(), status.Convert(got).Proto().String())
		if domain != grpcfence.Domain {
			require.Equal(t, sent, got)
		}
		stale, ok := errors.AsType[*fence.StaleError](got)
		if !ok {
			return
		}
		require.Equal(t, resource, stale.Resource)
		require.Equal(t, token == "true", stale.Read)
		want, _ := fence.Parse(token)
		require.Equal(t, want, stale.Token)
		want, _ = fence.Parse(highest)
		require.Equal(t, want, stale.Highest)
	})
}
