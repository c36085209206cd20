package s3fence

import (
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

var (
	// ErrUnknown reports that the answer to a write was lost and that the outcome cannot be determined: others have
	// written since, or the object could not be read. The write was done once, was not done, or is still under way. To
	// settle it, call [Bucket.Update]: its function sees the object, and its write makes the condition of a write that
	// is still under way false. A Get does not settle it: the write may be done after the Get.
	ErrUnknown = errors.New("s3fence: outcome unknown")

	// ErrContended reports that every attempt lost to a writer whose token is not newer, was deferred by the endpoint
	// with 409 or 429, or found no connection. Nothing was written, unless a proxy answered with the 409 of a copy while
	// the write itself was under way; see the package.
	ErrContended = errors.New("s3fence: all attempts failed")

	// ErrMalformed reports that an object has no envelope of this package, or one that it does not write. The object is
	// neither read nor overwritten, because its mark is unknown.
	ErrMalformed = errors.New("s3fence: malformed envelope")

	// ErrNoObject reports that the object does not exist, or that it has been claimed and never written.
	ErrNoObject = errors.New("s3fence: no such object")

	// ErrUnsafeEndpoint reports that the endpoint does not honour the conditions. The error of [Bucket.Probe] names each
	// fault that was found.
	ErrUnsafeEndpoint = errors.New("s3fence: unsafe endpoint")
)

// explain wraps err with the verb and the object. A refusal already names its object.
func (b *Bucket) explain(verb, key string, err error) error {
	switch err.(type) { //nolint:errorlint // An error that wraps a refusal carries more.
	case *fence.StaleError, *fence.OtherLockError:
		return err
	}
	return fmt.Errorf("s3fence: %s %q: %w", verb, b.resource(key), err)
}
