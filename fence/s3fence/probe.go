package s3fence

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

const (
	probePrefix  = ".leasefence-probe-"
	probeWriters = 16
	probeRounds  = 8

	cleanUpTimeout = 10 * time.Second
)

// Probe tests that the endpoint honours conditions, with scratch objects whose keys start with ".leasefence-probe-".
// Call it once when a service starts: some servers and proxies accept If-Match and ignore it, and then every stale
// write is accepted. At the end Probe deletes the objects, which may take up to 10 s after ctx has ended. A bucket with
// versions keeps theirs.
//
// Probe tests that each condition refuses one write and allows another; that of 16 concurrent writes under one
// condition exactly one is done, for eight objects that they create and then replace; and that no concurrent read
// returns an object's content with the ETag of a later write. It sends about 350 requests.
//
// If a test fails the error matches [ErrUnsafeEndpoint] and names the faults. Any other error is the client's and says
// nothing about the endpoint's safety. Nil means that no fault was found; it does not prove that there is none.
func (b *Bucket) Probe(ctx context.Context) error {
	if b == nil || b.client == nil {
		return errNoBucket
	}
	p := &probe{bucket: b}
	defer p.cleanUp(ctx)
	err := p.conditions(ctx)
	for round := 0; err == nil && len(p.ignored) == 0 && round < probeRounds; round++ {
		err = p.races(ctx)
	}
	switch {
	case err != nil:
		return fmt.Errorf("s3fence: probe bucket %q: %w", b.name, err)
	case len(p.ignored) > 0:
		return fmt.Errorf("%w for bucket %q: %s", ErrUnsafeEndpoint, b.name, strings.Join(p.ignored, "; "))
	}
	return nil
}

// probe is one run.
type probe struct {
	bucket  *Bucket
	keys    []string // of all scratch objects
	ignored []string
}

func (p *probe) ignore(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.ignored, text) {
		p.ignored = append(p.ignored, text)
	}
}

// newKey returns the key of a new scratch object.
func (p *probe) newKey() string {
	key := probePrefix + newID()
	p.keys = append(p.keys, key)
	return key
}

// conditions tries each condition alone.
func (p *probe) conditions(ctx context.Context) error {
	key := p.newKey()
	var before, now string // the ETags of the object and of its version before
	for i, step := range []struct {
		what string
		etag func() string // "": the object must not exist
		done bool          // the condition is true
	}{
		{"If-None-Match: * on a new object", func() string { return "" }, true},
		{"If-None-Match: * on an object that exists", func() string { return "" }, false},
		{"If-Match with the ETag", func() string { return now }, true},
		{"If-Match with an old ETag", func() string { return before }, false},
		// No object ever had this ETag. The old one may still be in a cache of the endpoint.
		{"If-Match with an ETag of no object", func() string { return `"00000000000000000000000000000000"` }, false},
	} {
		got, err := p.put(ctx, key, step.etag(), strconv.Itoa(i))
		switch classify(err) {
		case conflict:
			if !step.done {
				continue
			}
			return fmt.Errorf("%s: %w", step.what, err)
		case done:
			if got == "" {
				return fmt.Errorf("%s: the answer has no ETag", step.what)
			}
		default:
			return fmt.Errorf("%s: %w", step.what, err)
		}
		if !step.done {
			p.ignore("the endpoint ignored %s", step.what)
		}
		if before, now = now, got; before == now {
			p.ignore("two contents had the same ETag")
			return nil
		}
	}
	body, etag, err := p.bucket.fetch(ctx, key, "", 1<<10)
	if err == nil && len(p.ignored) == 0 && (string(body) != "2" || etag != now) {
		p.ignore("a read after a write returned another version")
	}
	return err
}

// races makes writers compete to create an object, and then to replace it.
func (p *probe) races(ctx context.Context) error {
	key := p.newKey()
	etag, err := p.race(ctx, key, "", "If-None-Match: *")
	if err == nil && len(p.ignored) == 0 {
		_, err = p.race(ctx, key, etag, "If-Match")
	}
	return err
}

// race makes writers write concurrently under one condition, and returns the ETag of the winner. Meanwhile it reads: if
// a read returned a content with the ETag of a later write, a stale holder would compare its token with the old content
// and overwrite the new one. The reverse does no harm: a write with an old ETag is refused.
func (p *probe) race(ctx context.Context, key, etag, condition string) (string, error) {
	type version struct{ content, etag string }
	var (
		writers, reader sync.WaitGroup
		seen            []version
		wrote           [probeWriters]version
		errs            [probeWriters]error
	)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	reader.Go(func() {
		for reading.Err() == nil {
			body, etag, err := p.bucket.fetch(reading, key, "", 1<<10)
			if err != nil {
				return // the writers report an endpoint that fails
			}
			seen = append(seen, version{string(body), etag})
		}
	})
	for i := range probeWriters {
		writers.Go(func() {
			wrote[i].content = newID()
			wrote[i].etag, errs[i] = p.put(ctx, key, etag, wrote[i].content)
		})
	}
	writers.Wait()
	stop()
	reader.Wait()

	var winners []version
	for i, err := range errs {
		switch classify(err) {
		case done:
			winners = append(winners, wrote[i])
		case conflict:
		default:
			return "", fmt.Errorf("%d concurrent writes: %w", probeWriters, err)
		}
	}
	switch len(winners) {
	case 0: // every write got a conflict, which 409 allows
		got, err := p.put(ctx, key, etag, newID())
		if classify(err) == conflict {
			p.ignore("all concurrent writes were refused, but one of them was done")
			return "", nil
		}
		return got, err
	case 1:
	default:
		p.ignore("of concurrent writes with the same %s more than one was done", condition)
		return "", nil
	}
	body, now, err := p.bucket.fetch(ctx, key, "", 1<<10)
	if err != nil {
		return "", err
	}
	if (version{string(body), now}) != winners[0] {
		p.ignore("after concurrent writes with the same %s a read did not return the one that was done", condition)
	}
	for _, s := range seen {
		if s.etag == winners[0].etag && s.content != winners[0].content {
			p.ignore("a read returned a content with the ETag of a later write")
		}
	}
	return now, nil
}

// put repeats a write that did not reach the endpoint or that the endpoint deferred.
func (p *probe) put(ctx context.Context, key, etag, content string) (string, error) {
	for attempt := 1; ; attempt++ {
		got, err := p.bucket.putIf(ctx, key, etag, []byte(content))
		if classify(err) != unsent || attempt >= p.bucket.opts.Attempts {
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
	for _, key := range p.keys {
		_, _ = p.bucket.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.bucket.name, Key: &key})
	}
}
