package s3fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
)

const (
	defaultAttempts = 16
	maxAttempts     = 1000

	defaultBackoff = 10 * time.Millisecond
	minBackoff     = time.Millisecond
	maxBackoff     = 10 * time.Second

	defaultMaxSize = 64 << 20

	maxBucket = 255  // S3's own limit is 63; other stores and access points have longer names
	maxKey    = 1024 // S3's own limit
)

// Options of [NewBucket]. The zero value of a field is its default.
type Options struct {
	// Attempts is the maximum number of times that one call sends a write: 1 to 1,000. Default 16.
	Attempts int
	// Backoff is the longest wait before the second attempt: 1 ms to 10 s, default 10 ms. It doubles with each attempt,
	// up to 100 times this value. Each wait is a random part of it.
	Backoff time.Duration
	// MaxSize is the largest payload that is read or written, in bytes: 1 to 5,368,701,952. Payloads are held in
	// memory. Default 64 MiB.
	MaxSize int64
	// MaxEra is the highest era that is accepted: 1 to 32767, default [fence.DefaultMaxEra], 15. A token of a higher
	// era is refused before anything is sent; see [fence.Token.CheckEra].
	MaxEra uint16
	// AllowUnnamed makes objects that follow a lock accept tokens without a lock's name, for example those of older
	// clients. The objects continue to follow their lock. By default such tokens are refused with a
	// [*fence.OtherLockError].
	AllowUnnamed bool

	// Hooks are called when a token was accepted or refused. Default: none.
	Hooks *fence.Hooks
}

// Bucket fences the objects of one bucket. Every object is a resource, named bucket/key, and carries its mark, the
// token of its last write. It also carries a mark of readers while that is higher, and the name of the lock that it
// follows.
//
// The context carries the token, see [fence.FromContext] and [fence.ReadFromContext], and the name of its lock, see
// [fence.LockFromContext]. A key is 1 to 1,024 bytes of UTF-8. A Bucket is safe for concurrent use, by any number of
// processes, and need not be closed.
type Bucket struct {
	client *s3.Client
	name   string
	opts   Options
}

// Object is one version of an object.
type Object struct {
	Payload []byte
	Token   fence.Token // of the writer that wrote or claimed it last
	Lock    string      // the lock that it follows, "" for none
	ETag    string      // from the endpoint, with its quotes
}

// NewBucket returns a Bucket that uses the client as it is, except that it repeats conditional writes itself instead of
// leaving that to the SDK. The bucket must exist. The error names the argument or the option, its value and the legal
// range. NewBucket sends nothing. Call [Bucket.Probe] before you trust an endpoint.
func NewBucket(client *s3.Client, bucket string, opts Options) (*Bucket, error) {
	opts.Attempts = cmp.Or(opts.Attempts, defaultAttempts)
	opts.Backoff = cmp.Or(opts.Backoff, defaultBackoff)
	opts.MaxSize = cmp.Or(opts.MaxSize, defaultMaxSize)
	if err := fence.CheckMaxEra("s3fence: Options.MaxEra", opts.MaxEra); err != nil {
		return nil, err
	}
	switch {
	case client == nil:
		return nil, errors.New("s3fence: client is nil, want an S3 client")
	case len(bucket) == 0 || len(bucket) > maxBucket:
		return nil, fmt.Errorf("s3fence: bucket %.64q has %d bytes, want 1 to %d", bucket, len(bucket), maxBucket)
	case opts.Attempts < 1 || opts.Attempts > maxAttempts:
		return nil, fmt.Errorf("s3fence: Options.Attempts is %d, want 1 to %d", opts.Attempts, maxAttempts)
	case opts.Backoff < minBackoff || opts.Backoff > maxBackoff:
		return nil, fmt.Errorf("s3fence: Options.Backoff is %v, want %v to %v", opts.Backoff, minBackoff, maxBackoff)
	case opts.MaxSize < 1 || opts.MaxSize > maxPayload:
		return nil, fmt.Errorf("s3fence: Options.MaxSize is %d, want 1 to %d", opts.MaxSize, int64(maxPayload))
	}
	return &Bucket{client: client, name: bucket, opts: opts}, nil
}

// Get reads an object. It needs no token and raises no mark. A successor can change the object right after; to write
// what depends on it, use [Bucket.Update]. If Object.Token is not above the token of a read lock, and Object.Lock is
// that lock, no newer writer has written what its holder got.
//
// The error matches [ErrNoObject] if the object does not exist or was claimed and never written, and [ErrMalformed] if
// it has no envelope of this package. Any other error is the client's.
func (b *Bucket) Get(ctx context.Context, key string) (Object, error) {
	if err := b.checkKey(key); err != nil {
		return Object{}, err
	}
	r, err := b.read(ctx, key)
	if err == nil && r.state != written {
		err = ErrNoObject
	}
	if err != nil {
		return Object{}, b.explain("get", key, err)
	}
	return Object{Payload: r.payload, Token: r.Write, Lock: r.Lock, ETag: r.etag}, nil
}

// Check reports whether the object would accept the context's token now. It reads at most the first 7 KiB and
// raises no mark. A missing object accepts every token. The answer can be out of date when Check returns: use it to
// give up early.
//
// The error is a [*fence.StaleError] with the mark as the highest token if a mark is newer, and a
// [*fence.OtherLockError] if the object follows another lock than the token's. It matches [fence.ErrInvalidToken] if
// the context carries no token, and [ErrMalformed] if the object has no envelope. Any other error is the client's.
func (b *Bucket) Check(ctx context.Context, key string) error {
	by, err := b.admit(ctx, "check", key, admission.Bid{})
	if err != nil {
		return err
	}
	_, err = b.look(ctx, "check", key, by)
	return b.tell(ctx, key, by, err)
}

// admit checks the key and returns the bid that ctx carries.
func (b *Bucket) admit(ctx context.Context, verb, key string, by admission.Bid) (admission.Bid, error) {
	if err := b.checkKey(key); err != nil {
		return by, err
	}
	by.Lax = b.opts.AllowUnnamed
	by, err := by.From(ctx, b.opts.MaxEra)
	if err != nil {
		err = b.explain(verb, key, err)
	}
	return by, err
}

// tell reports the outcome of a verb to the hooks, and returns its error, with the cause if that is the end of ctx.
func (b *Bucket) tell(ctx context.Context, key string, by admission.Bid, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	b.opts.Hooks.Tell(ctx, by.Access(b.resource(key)), err)
	return err
}

// look reads an object without its payload. It returns an error if the object refuses the bid.
func (b *Bucket) look(ctx context.Context, verb, key string, by admission.Bid) (reading, error) {
	r, err := b.readHeader(ctx, key)
	if err == nil {
		err = r.Refuse(b.resource(key), by)
	}
	if err != nil {
		return absent, b.explain(verb, key, err)
	}
	return r, nil
}

// resource is the name of an object in errors.
func (b *Bucket) resource(key string) string { return b.name + "/" + key }

func (b *Bucket) checkSize(verb, key string, payload []byte) error {
	if int64(len(payload)) > b.opts.MaxSize {
		return fmt.Errorf("s3fence: %s %q: payload has %d bytes, want at most Options.MaxSize, %d",
			verb, b.resource(key), len(payload), b.opts.MaxSize)
	}
	return nil
}

var errNoBucket = errors.New("s3fence: Bucket is nil or zero, want one created by NewBucket")

func (b *Bucket) checkKey(key string) error {
	switch {
	case b == nil || b.client == nil:
		return errNoBucket
	case len(key) == 0 || len(key) > maxKey:
		return fmt.Errorf("s3fence: key %.64q has %d bytes, want 1 to %d", key, len(key), maxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("s3fence: key %.64q is not UTF-8, want UTF-8", key)
	}
	return nil
}

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
