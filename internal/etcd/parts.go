package etcd

import (
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
)

// PartSize is the most operations of the transaction of one part. It is below the server's default limit of 128.
const PartSize = 100

// InParts calls send with one part of list after another, of at most most elements each. If the server's limit is
// lower, it goes on with smaller parts. A part for which permission is denied is halved until single elements fail,
// so that one forbidden key does not keep the others from being sent. InParts gives up at the refusals-th denial or
// at any other error. It returns the elements that were not sent with success, and the last error.
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

// tooLarge reports whether err says that a smaller request would be accepted.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		strings.Contains(err.Error(), "message larger than max") // gRPC's words
}
