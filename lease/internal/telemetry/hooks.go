package telemetry

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// Values are the values of a metric's labels, in their order. The last ones may be unused.
type Values [3]string

// Record records a value of a metric. It is called by several goroutines.
type Record func(ctx context.Context, m Metric, value float64, of Values)

// session turns the events of a session into values.
type session struct {
	record Record
	lock   func(lease.Acquisition) string // nil: no label lock

	mu sync.Mutex // guards the fields below
	// leading counts the leaderships of this process by election. A count may be 2 for a moment: the next leadership may
	// be won before the end of the last is reported.
	leading map[string]int
	// cleanUps counts the keys that are to be deleted by their lease. A lost lease may still have some.
	cleanUps map[clientv3.LeaseID]int
}

// Hooks returns hooks for one session that record its metrics. Lock returns the value of the label lock, unless it is
// nil.
func Hooks(record Record, lock func(lease.Acquisition) string) *lease.Hooks {
	s := &session{record: record, lock: lock, leading: map[string]int{}, cleanUps: map[clientv3.LeaseID]int{}}
	return &lease.Hooks{
		AcquireStart: func(ctx context.Context, a lease.Acquisition) context.Context {
			s.lead(ctx, a, 0)
			return ctx
		},
		Queued:       func(ctx context.Context, a lease.Acquisition, _ string) { s.of(ctx, a, Waiting, 1, "") },
		AcquireEnd:   s.acquired,
		Released:     func(ctx context.Context, h lease.Hold, err error) { s.ended(ctx, h, foundLost(err)) },
		Lost:         s.ended,
		Renewed:      s.renewed,
		StateChanged: s.stateChanged,
		CleanUp:      s.cleanUp,
	}
}

// of records a value of a metric with a kind. More is the value of the label after that, or "".
func (s *session) of(ctx context.Context, a lease.Acquisition, m Metric, value float64, more string) {
	of := Values{Kind(a.Kind), more}
	if s.lock != nil {
		of[len(Definitions[m].Labels)] = Value(s.lock(a))
	}
	s.record(ctx, m, value, of)
}

func (s *session) acquired(ctx context.Context, a lease.Acquisition, r lease.Acquired) {
	if r.Queued && !a.Try {
		s.of(ctx, a, Waiting, -1, "")
	}
	s.of(ctx, a, Acquisitions, 1, Outcome(ctx, a, r.Err))
	if r.Err != nil {
		return
	}
	s.of(ctx, a, Waited, r.Waited.Seconds(), "")
	s.of(ctx, a, Locks, 1, "")
	s.lead(ctx, a, 1)
}

func (s *session) ended(ctx context.Context, h lease.Hold, lost *lease.LostError) {
	if lost != nil {
		s.of(ctx, h.Acquisition, Losses, 1, Reason(lost.Reason))
	}
	s.of(ctx, h.Acquisition, Locks, -1, "")
	s.of(ctx, h.Acquisition, Held, h.Held.Seconds(), "")
	s.lead(ctx, h.Acquisition, -1)
}

// lead records whether the process leads an election, after a change of its leaderships.
func (s *session) lead(ctx context.Context, a lease.Acquisition, change int) {
	if a.Kind != lease.KindLeadership {
		return
	}
	name := a.Names[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading[name] += change
	s.record(ctx, Leads, float64(min(s.leading[name], 1)), Values{name})
	s.record(ctx, Slow, 0, Values{name})
}

func (s *session) renewed(r lease.Renewal) {
	ctx := context.Background()
	s.record(ctx, RoundTrip, r.RoundTrip.Seconds(), Values{})
	s.record(ctx, Attempts, float64(r.Attempts), Values{})
	s.record(ctx, Left, r.Left.Seconds(), Values{})
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.leading {
		if n > 0 && r.Attempts > 1 {
			s.record(ctx, Slow, 1, Values{name})
		}
	}
}

func (s *session) stateChanged(now lease.Status) {
	for _, state := range []lease.State{lease.StateHeld, lease.StateJeopardy, lease.StateLost} {
		value := 0.0
		if state == now.State {
			value = 1
		}
		s.record(context.Background(), State, value, Values{state.String()})
	}
}

func (s *session) cleanUp(id clientv3.LeaseID, keys int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanUps[id] = keys
	if keys == 0 {
		delete(s.cleanUps, id)
	}
	sum := 0
	for _, n := range s.cleanUps {
		sum += n
	}
	s.record(context.Background(), CleanUp, float64(sum), Values{})
}

// FenceHooks returns hooks for resources that record the tokens. Resource returns the value of the label resource,
// unless it is nil.
func FenceHooks(record Record, resource func(fence.Access) string) *fence.Hooks {
	count := func(ctx context.Context, a fence.Access, err error) {
		mode, outcome := Access(a, err)
		of := Values{mode, outcome}
		if resource != nil {
			of[2] = Value(resource(a))
		}
		record(ctx, Tokens, 1, of)
	}
	return &fence.Hooks{
		Accepted: func(ctx context.Context, a fence.Access) { count(ctx, a, nil) },
		Refused:  count,
	}
}
