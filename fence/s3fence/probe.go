package s3fence

import (
	"context"
	"errors"
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

// Probe shows on scratch objects, whose keys start with ".leasefence-probe-", that the endpoint can fence, and removes
// them. Call it once when a service starts, before it trusts an endpoint: there are servers, and proxies before
// servers, that accept If-Match and ignore it, with which every stale write is accepted.
//
// Each condition has to hold back a write, and to let one through; of 16 writes at once on one condition, created or
// replaced, exactly one may be done, eight times over; and what is read meanwhile must not have the ETag of a later
// write. It takes some 350 requests.
//
// If the endpoint ignores one of these the error is an [*UnsafeEndpointError], which matches [ErrUnsafeEndpoint]. Any
// other error is the client's, and nothing is known then. A race that did not show is not proved absent: nil says
// that nothing was found.
func (b *Bucket) Probe(ctx context.Context) error {
	p := &probe{bucket: b, key: probePrefix + newID()}
	defer func() {
		// The probe's own outcome stands: what stays behind does no harm.
		_ = p.cleanUp(ctx)
	}()
	if err := p.conditions(ctx); err != nil {
		return fmt.Errorf("s3fence: probe bucket %q: %w", b.name, err)
	}
	// Where conditions are ignored, races have nothing to add.
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
	racing  []string // keys of the rounds
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
	// What is held back leaves the ETag as it is; what is not has a new one.
	now, err := p.hold(ctx, "If-None-Match: * on an object that is there", "", "second", first)
	if err != nil {
		return err
	}
	second, err := p.pass(ctx, "If-Match with the ETag", now, "third")
	if err != nil {
		return err
	}
	if first == second {
		p.ignore("the ETag is the same for another content")
		return nil
	}
	now, err = p.hold(ctx, "If-Match with an ETag that has gone", first, "fourth", second)
	if err != nil {
		return err
	}
	// Nothing has this one: an endpoint may be slow to learn that the other has gone.
	const never = `"00000000000000000000000000000000"`
	if _, err := p.hold(ctx, "If-Match with an ETag that never was", never, "fifth", now); err != nil {
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
		p.ignore("a read after a write gave something else")
	}
	return nil
}

// pass writes under a condition that holds.
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

// hold writes under a condition that does not hold. It returns the ETag there is then: now, or another if the write
// was done.
func (p *probe) hold(ctx context.Context, what, etag, content, now string) (string, error) {
	switch got, err := p.put(ctx, p.key, etag, content); classify(err) {
	case done:
		p.ignore("it ignored %s", what)
		return got, nil
	case conflict:
		return now, nil
	default:
		return "", fmt.Errorf("%s: %w", what, err)
	}
}

// put writes until the endpoint has answered: a probe's writes may be repeated, for each has a content of its own.
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

// cleanUp runs when ctx may have ended already, so that it has a bound of its own.
func (p *probe) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	errs := make([]error, 0, 1+len(p.racing))
	for _, key := range append([]string{p.key}, p.racing...) {
		_, err := p.bucket.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.bucket.name, Key: &key})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
