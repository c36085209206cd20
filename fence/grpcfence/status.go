package grpcfence

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence/internal/wire"
)

// The values in the detail google.rpc.ErrorInfo of a refusal.
const (
	// Domain is the domain.
	Domain = "github.com/leasefence/leasefence"
	// ReasonStale is a token that is older than a mark of its resource: FAILED_PRECONDITION. The metadata of the detail
	// has "resource", "token" and "highest" if they are known, and "read" or "byReader", each "true", if the token or
	// the mark is that of a reader.
	ReasonStale = "FENCING_TOKEN_STALE"
	// ReasonOtherLock is a token that belongs to another lock than its resource follows: FAILED_PRECONDITION. The
	// metadata of the detail has "resource", "token", "read" as above, "lock", which is not there if the token came
	// without the name of its lock, and "follows".
	ReasonOtherLock = "FENCING_TOKEN_OTHER_LOCK"
	// ReasonMissing is a call that writes and has no token: FAILED_PRECONDITION.
	ReasonMissing = "FENCING_TOKEN_MISSING"
	// ReasonInvalid is a malformed token or more than one token, of a writer or a reader, or a malformed name of a
	// lock, more than one, or one without a token: INVALID_ARGUMENT.
	ReasonInvalid = "FENCING_TOKEN_INVALID"
)

// refusal is an error with a status: [status.FromError] finds the status, errors.Is and errors.As find err.
type refusal struct {
	status *status.Status
	err    error
}

func (r *refusal) Error() string              { return r.status.Err().Error() }
func (r *refusal) GRPCStatus() *status.Status { return r.status }
func (r *refusal) Unwrap() error              { return r.err }

// Error gives a status to the refusal of a token: FAILED_PRECONDITION with [ReasonStale] if err matches
// [fence.ErrStale], with [ReasonOtherLock] if it matches [fence.ErrOtherLock], or with [ReasonMissing] if it matches
// [ErrMissing]; INVALID_ARGUMENT with [ReasonInvalid] if it matches [fence.ErrInvalidToken]. The result still matches
// what err does.
//
// Error returns nil, and any error that is no refusal, unchanged. A refusal comes before a status that err also has, for
// example of a failed clean-up: a definite answer must not look like one to try again. The client gets the resource
// (the first 4 KiB of a longer name), the token and the mark of the [fence.StaleError], or the two locks of the
// [fence.OtherLockError] (the first [fence.MaxLock] bytes of longer names), and nothing of the errors that wrap it. The
// interceptors of [Server] call Error for the errors of handlers.
func Error(err error) error {
	if _, ok := err.(*refusal); ok { //nolint:errorlint // One that is wrapped gets a status without the text around it.
		return err
	}
	refused := wire.RefusalOf(err, ErrMissing, keys)
	k, ok := kinds[refused.Kind]
	if !ok {
		return err
	}
	st := status.New(k.code, refused.Text)
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: k.reason, Metadata: refused.Members}
	if detailed, err := st.WithDetails(info); err == nil { // info can always be encoded
		st = detailed
	}
	return &refusal{status: st, err: err}
}

// kinds are the codes and reasons of the refusals.
var kinds = map[wire.Kind]struct {
	code   codes.Code
	reason string
}{
	wire.Stale:     {codes.FailedPrecondition, ReasonStale},
	wire.OtherLock: {codes.FailedPrecondition, ReasonOtherLock},
	wire.Missing:   {codes.FailedPrecondition, ReasonMissing},
	wire.Invalid:   {codes.InvalidArgument, ReasonInvalid},
}

// unchecked returns the error of a call whose handler has not run because the check failed. Its status is that of the
// refusal or of err. Otherwise it is that of a context's error, or UNAVAILABLE, without the text of err, which may tell
// the client about the server's store.
func unchecked(err error) error {
	if refused := Error(err); status.Code(refused) != codes.Unknown {
		return refused
	}
	for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, ended) {
			return &refusal{status: status.FromContextError(ended), err: err}
		}
	}
	return &refusal{status: status.New(codes.Unavailable, "grpcfence: the token could not be checked"), err: err}
}

// ReadError returns, at the client, the refusal that a call's error contains: an error with a [*fence.StaleError],
// which matches [fence.ErrStale], one with a [*fence.OtherLockError], which matches [fence.ErrOtherLock], one that
// matches [ErrMissing] or one that matches [fence.ErrInvalidToken]. [status.FromError] still finds the status.
// ReadError returns nil and any other error unchanged.
//
// It recognises a refusal by code, domain and reason. Missing or malformed metadata of a refused token are zero in the
// error, since a refused holder must stop in any case. The interceptors [UnaryClient] and [StreamClient] call
// ReadError.
func ReadError(err error) error {
	if _, ok := errors.AsType[*refusal](err); ok {
		return err
	}
	st, _ := status.FromError(err)
	for _, detail := range st.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		for kind, k := range kinds {
			if st.Code() == k.code && info.GetReason() == k.reason {
				return &refusal{status: st, err: kind.Err(info.GetMetadata(), ErrMissing)}
			}
		}
	}
	return err
}
