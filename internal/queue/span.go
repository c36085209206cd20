package queue

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/leasefence/leasefence/internal/retry"
)

const (
	// mostSpans is how many watches the guards of one lease have at most.
	mostSpans = 16
	// freshSpans is how many of them are opened at a time where entries share watches.
	freshSpans = 3
)

// span is a watch of the keys from low to before high, and the entries of it that are guarded.
//
// An entry is safe in it once its key has been read after the watch existed, for as long as the watch goes on: what
// came before shows in the read, what comes after in the watch, on whatever members the two are. So when the watch
// breaks, all of them are read again under the next one. Spans may overlap.
type span struct {
	guards    *Guards
	low, high string
	cancel    context.CancelFunc
	wake      chan struct{} // of capacity 1: there are entries to read
	unread    []*Guarded    // to be read under the watch; guarded by guards.mu
}

func (s *span) covers(key string) bool { return s.low <= key && key < s.high }
func (s *span) only(key string) bool   { return s.low == key && s.high == key+"\x00" }

// cover has the entries, which are in old, watched. w.mu must be held.
func (w *Guards) cover(entries []*Guarded) {
	if w.alone {
		w.openEach(entries)
		return
	}
	if len(w.old) <= mostSpans && slices.ContainsFunc(w.spans, func(s *span) bool { return !s.only(s.low) }) {
		// They have become few again: each by itself, and whatever else lies between is not told to us any more.
		w.drop(func(*span) bool { return true })
		entries = slices.Collect(maps.Values(w.old))
	}
	var left []*Guarded
	for _, e := range entries {
		if i := slices.IndexFunc(w.spans, func(s *span) bool { return s.covers(e.Key) }); i >= 0 {
			w.spans[i].read(e)
			continue
		}
		left = append(left, e)
	}
	switch room := mostSpans - len(w.spans); {
	case len(left) <= room:
		w.openEach(left)
	case room >= freshSpans:
		w.join(pieces(left), freshSpans)
	default:
		// All are made fewer, so that there is room for the next.
		all := append(w.spans, pieces(left)...)
		w.spans = nil
		w.join(all, mostSpans/2)
	}
}

// openEach gives each entry a watch of its own.
func (w *Guards) openEach(entries []*Guarded) {
	for _, e := range entries {
		w.open(e.Key, e.Key+"\x00")
	}
}

// pieces are spans of one key each, which are not watched yet.
func pieces(entries []*Guarded) []*span {
	list := make([]*span, len(entries))
	for i, e := range entries {
		list[i] = &span{low: e.Key, high: e.Key + "\x00"}
	}
	return list
}

// join makes n spans of more: it keeps apart what has least in common with its neighbour. w.mu must be held.
func (w *Guards) join(spans []*span, n int) {
	slices.SortFunc(spans, func(a, b *span) int { return strings.Compare(a.low, b.low) })
	cuts := make([]int, 0, len(spans)) // i is a cut before spans[i]
	likeness := make([]int, len(spans))
	for i := 1; i < len(spans); i++ {
		cuts = append(cuts, i)
		likeness[i] = common(spans[i-1].low, spans[i].low)
	}
	slices.SortStableFunc(cuts, func(a, b int) int { return likeness[a] - likeness[b] })
	cuts = append(slices.Sorted(slices.Values(cuts[:min(n-1, len(cuts))])), len(spans))

	from := 0
	for _, to := range cuts {
		group := spans[from:to]
		from = to
		if len(group) == 1 && group[0].guards != nil {
			w.spans = append(w.spans, group[0])
			continue
		}
		high := ""
		for _, s := range group {
			high = max(high, s.high)
			if s.guards != nil {
				s.cancel()
			}
		}
		w.open(group[0].low, high)
	}
}

// common is the length of what two keys begin with alike.
func common(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// open begins to watch a span. w.mu must be held.
func (w *Guards) open(low, high string) {
	if w.Life.Err() != nil {
		return
	}
	s := &span{guards: w, low: low, high: high, wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(w.Life)
	s.cancel = cancel
	if w.Spawn(func(context.Context) { s.run(ctx) }) { // the lease's life ends before the session's
		w.spans = append(w.spans, s)
		return
	}
	cancel()
}

// drop ends spans that are not needed any more. w.mu must be held.
func (w *Guards) drop(which func(*span) bool) {
	w.spans = slices.DeleteFunc(w.spans, func(s *span) bool {
		if !which(s) {
			return false
		}
		s.cancel()
		return true
	})
}

// run keeps the span watched until ctx ends.
func (s *span) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	// The reads have a goroutine of their own: what the watch tells must not wait for an endpoint that does not answer.
	refused := make(chan error, 2)
	var reads sync.WaitGroup
	reads.Go(func() {
		if err := s.reads(ctx); err != nil {
			refused <- err
			stop()
		}
	})
	if err := s.watch(ctx); err != nil {
		refused <- err
	}
	stop()
	reads.Wait()
	select {
	case err := <-refused:
		s.guards.refused(s, err) //nolint:contextcheck // the spans that it opens live as long as the lease
	default:
	}
}

// watch keeps the watch open. The error is the server's final word.
func (s *span) watch(ctx context.Context) error {
	const steady = time.Second // a watch that lasts so long is no reason to wait before the next
	var b retry.Backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := s.guards.Queue.watch(ctx, s.low, func(_ context.Context, events clientv3.WatchChan) error {
			return s.serve(events)
		}, clientv3.WithRange(s.high), clientv3.WithCreatedNotify())
		if err != nil && ctx.Err() == nil {
			return err
		}
		if time.Since(began) > steady {
			b.Reset()
		}
		// Until the next watch exists nothing tells, and that may take long where an endpoint is sick.
		s.readAll()
		_ = b.Sleep(ctx) // the error is that ctx has ended
	}
	return nil
}

// serve works on a watch until it breaks.
func (s *span) serve(events clientv3.WatchChan) error {
	// The first that it tells is that it exists, or why it does not.
	for exists := false; ; {
		resp, ok := <-events
		broken := resp.Err()
		if broken != nil && denied(broken) {
			return broken
		}
		if !ok || broken != nil {
			return nil //nolint:nilerr // a watch that broke is opened again
		}
		if !exists {
			exists = true
			s.readAll()
		}
		s.guards.tell(resp.Events)
	}
}

// read has an entry read. guards.mu must be held.
func (s *span) read(e *Guarded) {
	s.unread = append(s.unread, e)
	s.wakeReads()
}

// readAll has all entries read.
func (s *span) readAll() {
	s.guards.mu.Lock()
	defer s.guards.mu.Unlock()
	s.unread = s.unread[:0]
	for key, e := range s.guards.old {
		if s.covers(key) {
			s.unread = append(s.unread, e)
		}
	}
	s.wakeReads()
}

func (s *span) wakeReads() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// reads reads what is to be read, until ctx ends or a read is refused.
func (s *span) reads(ctx context.Context) error {
	w := s.guards
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil
		}
		w.mu.Lock()
		list := slices.DeleteFunc(s.unread, w.isGone)
		s.unread = nil
		w.mu.Unlock()
		err := w.Queue.verify(ctx, list, func(e *Guarded) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.isGone(e)
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// isGone reports whether e is not guarded any more. w.mu must be held.
func (w *Guards) isGone(e *Guarded) bool { return w.old[e.Key] != e }

// denied reports whether a watch was refused for want of permission. The server says so in words.
func denied(err error) bool {
	return retry.Code(err) == codes.PermissionDenied || strings.Contains(err.Error(), rpctypes.ErrPermissionDenied.Error())
}
