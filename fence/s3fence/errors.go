package s3fence

import (
	"errors"
	"fmt"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

var (
	// ErrUnknown says that the answer to a write was lost and that nothing tells any more whether it was done: others
	// have written since, or the object could not be read. It was done once or not at all, or is still under way. Read
	// the object, under the same token, before writing again.
	ErrUnknown = errors.New("s3fence: outcome unknown")

	// ErrContended says that all attempts were overtaken by writers whose tokens are not newer, or put off by the
	// endpoint. Nothing was written.
	ErrContended = errors.New("s3fence: attempts used up")

	// ErrMalformed says that an object has no envelope of this package, or a damaged one. It is neither read nor
	// overwritten: whether a newer token was there cannot be told.
	ErrMalformed = errors.New("s3fence: malformed envelope")

	// ErrNoObject says that there is no such object, or that it has been claimed and never written.
	ErrNoObject = errors.New("s3fence: no such object")

	// ErrUnsafeEndpoint says that the endpoint cannot fence. The error itself is an [*UnsafeEndpointError].
	ErrUnsafeEndpoint = errors.New("s3fence: unsafe endpoint")
)

// UnsafeEndpointError is what [Bucket.Probe] found. It matches [ErrUnsafeEndpoint].
type UnsafeEndpointError struct {
	Bucket  string
	Ignored []string // what the endpoint ignored, one sentence each
}

// Error names the bucket and everything that was ignored.
func (e *UnsafeEndpointError) Error() string {
	return fmt.Sprintf("%v for bucket %q: %s", ErrUnsafeEndpoint, e.Bucket, strings.Join(e.Ignored, "; "))
}

// Is reports whether target is [ErrUnsafeEndpoint].
func (e *UnsafeEndpointError) Is(target error) bool { return target == ErrUnsafeEndpoint }

// explain wraps err once with what was being done, and to which object. A refusal names the object itself.
func (b *Bucket) explain(verb, key string, err error) error {
	if stale, ok := err.(*fence.StaleError); ok { //nolint:errorlint // A wrapped one has more to say.
		return stale
	}
	return fmt.Errorf("s3fence: %s %q: %w", verb, b.resource(key), err)
}
