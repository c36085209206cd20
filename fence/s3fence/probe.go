package s3fence

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

const (
	probePrefix  = ".leasefence-probe-"
	probeWriters = 16
	probeRounds  = 8

	cleanUpTimeout = 10 * time.Second
)

// Probe tests that the endpoint honours conditions, with scratch objects whose keys start with ".leasefence-probe-" and
// which it deletes at the end. Call it once when a service starts: some servers and proxies accept If-Match and ignore
// it, and then every stale write is accepted.
//
// Probe tests that each condition refuses one write and allows another; that of 16 concurrent writes under one
// condition exactly one is done, in eight rounds that create an object and eight that replace it; and that no
// concurrent read returns an object's content with the ETag of a later write. It sends about 350 requests.
//
// If a test fails the error is an [*UnsafeEndpointError], which matches [ErrUnsafeEndpoint]. Any other error is the
// client's and says nothing about the endpoint's safety. Nil means that no fault was found; it does not prove that
// there is none.
func (b *Bucket) Probe(ctx context.Context) error {
	p := &probe{bucket: b, key: probePrefix + newID()}
	defer p.cleanUp(ctx)
	if err := p.conditions(ctx); err != nil {
		return fmt.Errorf("s3fence: probe bucket %q: %w", b.name, err)
	}
	// If conditions are ignored, races add nothing.
	if len(p.ignored) == 0 {
		if err := p.races(ctx); err != nil {
			return fmt.Errorf("s3fence: probe bucket %q: %w", b.name, err)
		}
	}
	if len(p.ignored) > 0 {
		return &UnsafeEndpointError{Bucket: b.name, Ignored: p.ignored}
	}
	return nil
}

// probe is one run.
type probe struct {
	bucket  *Bucket
	key     string
	racing  []string // the keys of the rounds
	ignored []string
}

func (p *probe) ignore(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.ignored, text) {
		p.ignored = append(p.ignored, text)
	}
}

// conditions tries each condition alone.
func (p *probe) conditions(ctx context.Context) error {
	first, err := p.pass(ctx, "If-None-Match: * on a new object", "", "first")
	if err != nil {
		return err
	}
	// A refused write leaves the ETag as it is.
	now, err := p.hold(ctx, "If-None-Match: * on an object that exists", "", "second", first)
	if err != nil {
		return err
	}
	second, err := p.pass(ctx, "If-Match with the ETag", now, "third")
	if err != nil {
		return err
	}
	if first == second {
		p.ignore("two contents had the same ETag")
		return nil
	}
	now, err = p.hold(ctx, "If-Match with an old ETag", first, "fourth", second)
	if err != nil {
		return err
	}
	// No object ever had this ETag. The old ETag of the last test may still be in a cache of the endpoint.
	const never = `"00000000000000000000000000000000"`
	if _, err := p.hold(ctx, "If-Match with an ETag of no object", never, "fifth", now); err != nil {
		return err
	}
	if len(p.ignored) > 0 {
		return nil
	}
	body, etag, err := p.bucket.fetch(ctx, p.key, "", 1<<10)
	if err != nil {
		return err
	}
	if string(body) != "third" || etag != second {
		p.ignore("a read after a write returned another version")
	}
	return nil
}

// pass writes under a condition that is true.
func (p *probe) pass(ctx context.Context, what, etag, content string) (string, error) {
	got, err := p.put(ctx, p.key, etag, content)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	if got == "" {
		return "", fmt.Errorf("%s: the answer has no ETag", what)
	}
	return got, nil
}

// hold writes under a condition that is false. It returns the object's ETag: now, or a new one if the write was done.
func (p *probe) hold(ctx context.Context, what, etag, content, now string) (string, error) {
	switch got, err := p.put(ctx, p.key, etag, content); classify(err) {
	case done:
		p.ignore("the endpoint ignored %s", what)
		return got, nil
	case conflict:
		return now, nil
	default:
		return "", fmt.Errorf("%s: %w", what, err)
	}
}

// put repeats a write that did not reach the endpoint or that the endpoint deferred.
func (p *probe) put(ctx context.Context, key, etag, content string) (string, error) {
	for attempt := 1; ; attempt++ {
		got, err := p.bucket.putIf(ctx, key, etag, []byte(content))
		if a := classify(err); a != unsent || attempt >= p.bucket.opts.Attempts {
			return got, err
		}
		if waitErr := p.bucket.wait(ctx, attempt); waitErr != nil {
			return "", fmt.Errorf("%w, after: %w", waitErr, err)
		}
	}
}

// cleanUp deletes the scratch objects within a timeout of its own, since ctx may have ended. An error does not change the
// outcome of the probe: scratch objects that remain do no harm.
func (p *probe) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	for _, key := range append([]string{p.key}, p.racing...) {
		_, _ = p.bucket.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.bucket.name, Key: &key})
	}
}
