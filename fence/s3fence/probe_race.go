package s3fence

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// races makes writers compete for one object: first to create it, then to replace each version of it.
func (p *probe) races(ctx context.Context) error {
	for range probeRounds {
		key := p.key + "-" + strconv.Itoa(len(p.racing))
		p.racing = append(p.racing, key)
		if _, err := p.race(ctx, key, "", 0); err != nil {
			return err
		}
	}
	if len(p.ignored) > 0 {
		return nil
	}
	return p.chain(ctx, p.racing[0])
}

// chain replaces an object round by round while a reader reads it. If a read returned a content with the ETag of a
// later write, a stale holder would compare its token with the old content and overwrite the new one. The reverse does
// no harm: a write with an old ETag is refused.
func (p *probe) chain(ctx context.Context, key string) error {
	rounds := make(map[string]int) // by ETag
	_, etag, err := p.bucket.fetch(ctx, key, "", 1<<10)
	if err != nil {
		return err
	}
	rounds[etag] = 0
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := reader{probe: p, key: key}
	var wg sync.WaitGroup
	wg.Go(func() { r.run(ctx) })
	for round := 1; round <= probeRounds; round++ {
		if etag, err = p.race(ctx, key, etag, round); err != nil || len(p.ignored) > 0 {
			break
		}
		rounds[etag] = round
	}
	cancel()
	wg.Wait()
	if err != nil {
		return err
	}
	for _, s := range r.seen {
		if round, ok := rounds[s.etag]; ok && round > s.round {
			p.ignore("a read returned a content with the ETag of a later write")
		}
	}
	return nil
}

// race makes writers write concurrently under one condition, and returns the ETag of the winner.
func (p *probe) race(ctx context.Context, key, etag string, round int) (string, error) {
	etags := make([]string, probeWriters)
	errs := make([]error, probeWriters)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range probeWriters {
		wg.Go(func() {
			<-start
			etags[i], errs[i] = p.put(ctx, key, etag, content(round, i))
		})
	}
	close(start)
	wg.Wait()

	var winners []int
	for i, err := range errs {
		switch classify(err) {
		case done:
			winners = append(winners, i)
		case conflict:
		default:
			return "", fmt.Errorf("%d concurrent writes: %w", probeWriters, err)
		}
	}
	condition := "If-Match"
	if etag == "" {
		condition = "If-None-Match: *"
	}
	switch len(winners) {
	case 0: // every write got a conflict, which 409 allows
		return p.settle(ctx, key, etag, round)
	case 1:
	default:
		p.ignore("of concurrent writes with the same %s more than one was done", condition)
		return etags[winners[0]], nil
	}
	body, now, err := p.bucket.fetch(ctx, key, "", 1<<10)
	if err != nil {
		return "", err
	}
	if string(body) != content(round, winners[0]) || now != etags[winners[0]] {
		p.ignore("after concurrent writes with the same %s a read did not return the one that was done", condition)
	}
	return now, nil
}

// settle writes the round's content after every writer got a conflict.
func (p *probe) settle(ctx context.Context, key, etag string, round int) (string, error) {
	got, err := p.put(ctx, key, etag, content(round, probeWriters))
	if classify(err) == conflict {
		p.ignore("all concurrent writes were refused, but one of them was done")
		return etag, nil
	}
	return got, err
}

func content(round, writer int) string { return fmt.Sprintf("%d %d", round, writer) }

// reader reads an object until its context ends or a read fails.
type reader struct {
	probe *probe
	key   string
	seen  []sight // read when run has returned
}

// sight is the result of one read.
type sight struct {
	etag  string
	round int // of the content
}

func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		body, etag, err := r.probe.bucket.fetch(ctx, r.key, "", 1<<10)
		if err != nil {
			return // the writers report an endpoint that fails
		}
		first, _, _ := strings.Cut(string(body), " ")
		if round, err := strconv.Atoi(first); err == nil {
			r.seen = append(r.seen, sight{etag, round})
		}
	}
}
