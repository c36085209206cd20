package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrNotSent is wrapped by errors of requests that were given up before they were sent.
	ErrNotSent = errors.New("not sent")
	// ErrNotDone is wrapped by this library's own errors: etcd answered, and did not do what was wanted.
	ErrNotDone = errors.New("not done")
)

// verdict is what an error says of the request that failed with it.
type verdict struct {
	refused bool // the request was certainly not carried out
	final   bool // a retry would not help
}

// judge is the one place that decides what an error means. An error that is not known to be a refusal leaves the
// outcome unknown. An error that is not known to be final is retried until the request's time is over. judge goes by
// the text of an error where the table gives one, otherwise by its gRPC code. The table covers etcd 3.4 to 3.7, gRPC
// and proxies.
//
//	error                                     outcome   then
//	ErrNotSent                                refused   again   the request was given up before it was sent
//	ErrNotDone                                refused   final   our own: the answer was not the wanted one
//	the end of a context                      unknown   again   an attempt's own end: While checks the caller's first
//	an error without a gRPC code              unknown   final   not the server's: our own, or an interceptor's
//
//	too many requests                         refused   again   before the proposal: apply lags behind
//	not capable                               refused   again   before the proposal: the member is starting
//	rpc not supported for learner             refused   again   before the proposal: another endpoint may be a voter
//	not leader                                refused   again   before the proposal, by the member that was asked
//	revision of auth store is old             refused   again   at apply: users changed after the proposal
//	database space exceeded                   unknown   again   if space runs out after the proposal, it is still applied
//	received message larger than max          unknown   final   gRPC's words for the request and for the answer alike
//	trying to send message larger than max    refused   final   by the client
//	password was given for no password user   refused   final   when the client asks for a token; code Unknown
//
//	InvalidArgument, OutOfRange               refused   final   bad input: key, operations, size, revision, TTL, user
//	NotFound, FailedPrecondition              refused   final   no such lease; leases, users, members that exist or do not
//	PermissionDenied, Unauthenticated         refused   final   permission or token; a proxy's 401 and 403
//	Unimplemented                             refused   final   a proxy's 404
//	Unavailable                               unknown   again   no leader, another one, timeout, stop, broken connection
//	Canceled, DeadlineExceeded                unknown   again   by the server or a proxy
//	Unknown                                   unknown   again   see below
//	ResourceExhausted                         unknown   again   limits other than those above
//	DataLoss                                  unknown   again   the alarm "corrupt", until it is disarmed
//	Internal, Aborted and the others          unknown   again   somebody between client and server
//
// Servers send these with the code Unknown: "raft proposal dropped" (there is no leader, or leadership is being
// moved), "raft: stopped" and "mvcc: closed" (the member stops), "etcdserver: request cancelled" (before 3.7), "not a
// primary lessor" and "waiting for node to catch up its applied index has timed out" (a renewal during a change of
// leader).
//
// A refusal at apply (permission, lease, users) refuses the whole transaction: etcd checks all of its operations
// before it carries out the first.
func judge(err error) verdict {
	switch {
	case errors.Is(err, ErrNotSent):
		return verdict{refused: true}
	case errors.Is(err, ErrNotDone):
		return verdict{refused: true, final: true}
	}
	code, text, known := describe(err)
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case !known:
		return verdict{final: true}
	case slices.Contains(passing[:], text):
		return verdict{refused: true}
	case code == codes.ResourceExhausted && has("received message larger than max"):
		return verdict{final: true}
	case code == codes.ResourceExhausted && has("trying to send message larger than max"),
		code == codes.Unknown && has("password was given for no password user"):
		return verdict{refused: true, final: true}
	}
	switch code {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied,
		codes.Unauthenticated, codes.Unimplemented:
		return verdict{refused: true, final: true}
	default:
		return verdict{}
	}
}

// passing are refusals that may be temporary. They are matched by their text, because some had another code before 3.7.
var passing = [...]string{
	rpctypes.ErrTooManyRequests.Error(), rpctypes.ErrNotCapable.Error(), rpctypes.ErrNotLeader.Error(),
	rpctypes.ErrAuthOldRevision.Error(), rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner),
}

// describe returns the gRPC code of an error and its text. known is false if the error is neither from etcd's client
// nor from gRPC nor from a context.
func describe(err error) (code codes.Code, text string, known bool) {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code(), e.Error(), true
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded, "", true
	case errors.Is(err, context.Canceled):
		return codes.Canceled, "", true
	}
	e, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	if !ok {
		return codes.Unknown, "", false
	}
	return e.GRPCStatus().Code(), e.GRPCStatus().Message(), true
}

// Transient reports whether a retry of the request that failed with err may succeed; see [judge]. It is false for nil.
func Transient(err error) bool { return err != nil && !judge(err).final }

// Refused reports whether err shows that the request was not carried out; see [judge]. After any other failure it may
// have been, or may still be.
func Refused(err error) bool {
	_, repeated := errors.AsType[*repeatedError](err)
	return !repeated && judge(err).refused
}

// TooMuch reports whether err says that there is no room for a request or for its answer, so that a part of the
// request may succeed. The request may have been carried out all the same: if space runs out while a transaction
// waits to be applied, etcd applies it and answers with the error (quotaApplierV3). And gRPC has one text for a
// request that is too large for the server and for an answer that is too large for the client.
func TooMuch(err error) bool {
	return errors.Is(err, rpctypes.ErrNoSpace) ||
		Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger than max")
}

// Denied reports whether permission was denied; err must not be nil. For a watch the server says so only in the text.
func Denied(err error) bool {
	return Code(err) == codes.PermissionDenied || strings.Contains(err.Error(), rpctypes.ErrPermissionDenied.Error())
}

// Code is the gRPC code of an error of etcd's client; Unknown if it has none.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	code, _, _ := describe(err)
	return code
}

// Repeated returns err, which must not be nil, as one for which [Refused] is false. It is for a request that was also
// sent before with an unknown outcome: a refusal this time says nothing about that.
func Repeated(err error) error {
	if !Refused(err) {
		return err
	}
	return &repeatedError{err}
}

type repeatedError struct{ err error }

func (e *repeatedError) Error() string { return e.err.Error() }
func (e *repeatedError) Unwrap() error { return e.err }
