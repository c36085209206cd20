package grpcfence

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
)

// The detail google.rpc.ErrorInfo of a refusal.
const (
	// Domain is its domain.
	Domain = "github.com/leasefence/leasefence"
	// ReasonStale is a token that is older than the newest its resource has seen: FAILED_PRECONDITION. The metadata
	// of the detail are "resource", "token" and "highest", as far as they are known.
	ReasonStale = "FENCING_TOKEN_STALE"
	// ReasonMissing is a call that needs a token and has none: FAILED_PRECONDITION.
	ReasonMissing = "FENCING_TOKEN_MISSING"
	// ReasonInvalid is a token that is malformed, or more than one: INVALID_ARGUMENT.
	ReasonInvalid = "FENCING_TOKEN_INVALID"
)

// refusal is an error of gRPC and an error of this module at once: [status.FromError] finds the one, errors.Is
// and errors.As the other.
type refusal struct {
	status *status.Status
	err    error
}

func (r *refusal) Error() string              { return r.status.Err().Error() }
func (r *refusal) GRPCStatus() *status.Status { return r.status }
func (r *refusal) Unwrap() error              { return r.err }

// Error gives the refusal of a token its status: FAILED_PRECONDITION with [ReasonStale] if err matches
// [fence.ErrStale], or with [ReasonMissing] if it matches [ErrMissing]; INVALID_ARGUMENT with [ReasonInvalid] if it
// matches [fence.ErrInvalidToken]. The result still matches what err does.
//
// Any other error, nil, and an error that has a status already are returned as they are. The client is told the
// resource, the token and the mark, as far as the [fence.StaleError] has them, and nothing of the errors around it.
// The interceptors of [Server] do this with what a handler returns.
func Error(err error) error {
	if _, ok := status.FromError(err); ok { // nil has one too
		return err
	}
	code, info := codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: Domain}
	var text string
	switch {
	case errors.Is(err, fence.ErrStale):
		info.Reason, text = ReasonStale, fence.ErrStale.Error()
		if stale, ok := errors.AsType[*fence.StaleError](err); ok && stale != nil {
			text = stale.Error()
			info.Metadata = staleMetadata(stale)
		}
	case errors.Is(err, ErrMissing):
		info.Reason, text = ReasonMissing, ErrMissing.Error()
	case errors.Is(err, fence.ErrInvalidToken):
		code, info.Reason = codes.InvalidArgument, ReasonInvalid
		text = fence.ErrInvalidToken.Error() + ": want one value of " + MetadataKey + ", in plain decimal"
	default:
		return err
	}
	st := status.New(code, text)
	if detailed, err := st.WithDetails(info); err == nil { // it always has a form: see staleMetadata
		st = detailed
	}
	return &refusal{status: st, err: err}
}

func staleMetadata(stale *fence.StaleError) map[string]string {
	md := map[string]string{
		// A string of protobuf is UTF-8; a name that is not would cost the client the whole detail.
		"resource": strings.ToValidUTF8(stale.Resource, "\uFFFD"),
		"token":    stale.Token.String(),
	}
	if stale.Highest != 0 {
		md["highest"] = stale.Highest.String()
	}
	return md
}

// unchecked is the error of a call whose token could not be checked: UNAVAILABLE, as the handler has not run, and
// nothing of err, unless err is a context's or has a status of its own.
func unchecked(err error) error {
	if refused := Error(err); status.Code(refused) != codes.Unknown {
		return refused
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &refusal{status: status.FromContextError(err), err: err}
	}
	return &refusal{status: status.New(codes.Unavailable, "grpcfence: the token could not be checked"), err: err}
}

// ReadError returns the refusal that a call's error stands for, at the client: an error that matches [fence.ErrStale]
// and holds a [*fence.StaleError], one that matches [ErrMissing] or one that matches [fence.ErrInvalidToken].
// [status.FromError] finds the status in it as before. Any other error, and nil, is returned as it is.
//
// It knows a refusal by code, domain and reason; metadata of a stale token that are missing or malformed are left zero
// in the error, for a holder that has been refused must stop all the same. The interceptors [UnaryClient] and
// [StreamClient] do this.
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
		return &fence.StaleError{Resource: md["resource"], Token: member(md["token"]), Highest: member(md["highest"])}
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

func member(text string) fence.Token {
	t, err := fence.Parse(text)
	if err != nil {
		return 0
	}
	return t
}
