package grpcfence

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
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
// Error returns nil, an error that already has a status and any other error unchanged. The client gets the resource
// (the first 4 KiB of a longer name), the token and the mark of the [fence.StaleError], or the two locks of the
// [fence.OtherLockError] (the first [fence.MaxLock] bytes of longer names), and nothing of the errors that wrap it. The
// interceptors of [Server] call Error for the errors of handlers.
func Error(err error) error {
	if _, ok := status.FromError(err); ok { // nil has one too
		return err
	}
	code, info := codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: Domain}
	var text string
	switch {
	case errors.Is(err, fence.ErrStale):
		info.Reason, text = ReasonStale, fence.ErrStale.Error()
		if known, ok := wire.Stale(err); ok {
			text, info.Metadata = known.Error(), staleMetadata(known)
		}
	case errors.Is(err, fence.ErrOtherLock):
		info.Reason, text = ReasonOtherLock, fence.ErrOtherLock.Error()
		if known, ok := wire.OtherLock(err); ok {
			text, info.Metadata = known.Error(), otherLockMetadata(known)
		}
	case errors.Is(err, ErrMissing):
		info.Reason, text = ReasonMissing, ErrMissing.Error()
	case errors.Is(err, fence.ErrInvalidToken):
		code, info.Reason = codes.InvalidArgument, ReasonInvalid
		text = fence.ErrInvalidToken.Error() + ": want one value of " + MetadataKey + " or " + ReadMetadataKey + ", plain decimal, and at most one of " +
			LockMetadataKey + ", percent-encoded"
	default:
		return err
	}
	st := status.New(code, text)
	if detailed, err := st.WithDetails(info); err == nil { // info can always be encoded, see utf8
		st = detailed
	}
	return &refusal{status: st, err: err}
}

func staleMetadata(stale fence.StaleError) map[string]string {
	md := map[string]string{
		"resource": utf8(stale.Resource),
		"token":    stale.Token.String(),
	}
	if stale.Highest != 0 {
		md["highest"] = stale.Highest.String()
	}
	if stale.Read {
		md["read"] = "true"
	}
	if stale.ByReader {
		md["byReader"] = "true"
	}
	return md
}

func otherLockMetadata(other fence.OtherLockError) map[string]string {
	md := map[string]string{
		"resource": utf8(other.Resource),
		"token":    other.Token.String(),
		"follows":  utf8(other.Follows),
	}
	if other.Lock != "" {
		md["lock"] = utf8(other.Lock)
	}
	if other.Read {
		md["read"] = "true"
	}
	return md
}

// utf8 makes a name valid in protobuf: with an invalid string the client would lose the whole detail.
func utf8(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

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
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.InvalidArgument:
	default:
		return err
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		return err
	}
	st, _ := status.FromError(err)
	for _, detail := range st.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		if cause := cause(st.Code(), info); cause != nil {
			return &refusal{status: st, err: cause}
		}
	}
	return err
}

func cause(code codes.Code, info *errdetails.ErrorInfo) error {
	switch info.GetReason() {
	case ReasonStale:
		if code != codes.FailedPrecondition {
			return nil
		}
		md := info.GetMetadata()
		return &fence.StaleError{
			Resource: md["resource"], Token: wire.Member(md["token"]), Highest: wire.Member(md["highest"]),
			Read: md["read"] == "true", ByReader: md["byReader"] == "true",
		}
	case ReasonOtherLock:
		if code != codes.FailedPrecondition {
			return nil
		}
		md := info.GetMetadata()
		return &fence.OtherLockError{
			Resource: md["resource"], Token: wire.Member(md["token"]), Read: md["read"] == "true",
			Lock: md["lock"], Follows: md["follows"],
		}
	case ReasonMissing:
		if code == codes.FailedPrecondition {
			return ErrMissing
		}
	case ReasonInvalid:
		if code == codes.InvalidArgument {
			return fence.ErrInvalidToken
		}
	}
	return nil
}
