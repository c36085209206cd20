package etcd

import (
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
)

// PartSize is how many operations a transaction of a part has at most, within the server's default limit of 128.
const PartSize = 100

// InParts calls send with parts of list, of at most so many, in order. A limit of the server's that is lower is learnt. A part
// for which permission is denied is sent again in smaller ones: one key that is forbidden is no reason to leave the others.
// After so many of those refusals, or another failure, it gives up. It returns what was not sent with success, and the last
// error.
func InParts[T any](list []T, most, refusals int, send func([]T) error) (failed []T, why error) {
	for n := most; len(list) > 0; {
		part := list[:min(n, most, len(list))]
		err := send(part)
		if err == nil {
			list, n = list[len(part):], 2*len(part)
			continue
		}
		if len(part) > 1 && tooLarge(err) {
			most = len(part) / 2
			continue
		}
		why = err
		if refusals--; refusals <= 0 || Code(err) != codes.PermissionDenied {
			return append(failed, list...), why
		}
		if n = len(part) / 2; n == 0 {
			failed, list, n = append(failed, part...), list[1:], 1
		}
	}
	return failed, why
}

// tooLarge reports whether err says that a part of the request would pass.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		strings.Contains(err.Error(), "message larger than max") // gRPC's words
}
