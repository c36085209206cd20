package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/etcd"
)

// renew keeps the lease alive until it is lost or ctx ends; [grant.watchDeadline] keeps its deadline.
//
// A renewal is due shortly before a third of the TTL has passed since the last acknowledged one was sent. It goes over
// a stream on the client's own connection. If no answer comes, renew hedges: each half of a third it sends one more
// renewal beside it, over a separate stream to one endpoint, in turn, because a second stream on the client's
// connection might meet the same sick endpoint. Earlier renewals are not cancelled: a late answer within the deadline
// is as good as any, since its own send time counts. A renewal that fails is repeated soon, and then at the same
// intervals. "Lease not found" is final at once.
func (g *grant) renew(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	r := &renewals{g: g, answers: make(chan renewal), beside: make(map[int]*line)}
	r.turn = rand.N(len(r.endpoints()))
	r.own = r.line(ctx, "")
	r.running.Go(r.own.Open)
	defer r.close()
	defer cancel()
	r.plan(g.due())

	next := time.NewTimer(r.wait())
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.gone:
			return
		case <-g.look: // the timer may have stood still with the host
		case <-next.C:
		case a := <-r.answers:
			r.take(a)
		}
		if r.wait() <= 0 {
			if !g.checkDeadline() { // the host may have been suspended, and the deadline's timer with it
				return
			}
			r.send(ctx)
		}
		next.Reset(r.wait())
	}
}

// renewals is the state of renew, which alone uses it.
type renewals struct {
	g       *grant
	own     *line         // on the client's own connection
	beside  map[int]*line // to one endpoint each, by its index in endpoints
	turn    int           // the index whose turn it is; the number of endpoints stands for own
	last    *line         // the line used last
	answers chan renewal
	running sync.WaitGroup

	planned clock.Instant // when the next one was planned
	pause   time.Duration // from planned until the next one is sent

	tries  int  // renewals sent since the last answer
	failed bool // the first of those tries failed
	broken bool // a stream broke since the last answer
}

// line is a stream and the renewal under way on it, if any.
type line struct {
	*etcd.KeepAlive

	busy  bool          // a renewal is under way
	asked clock.Instant // when that was sent
	left  bool          // the line is closed or about to be: ignore its answer
}

// renewal is the outcome of one renewal.
type renewal struct {
	etcd.Renewal

	line *line
	err  error
}

func (r *renewals) line(ctx context.Context, endpoint string) *line {
	g := r.g
	return &line{KeepAlive: g.s.conn.NewKeepAlive(ctx, g.id, endpoint, 2*g.third())}
}

// plan schedules the next renewal after pause.
func (r *renewals) plan(pause time.Duration) { r.planned, r.pause = r.g.s.clock.Now(), pause }

// endpoints are those of the lines beside own: the client's. A single one counts three times, and each of two twice, so
// that there is a line for each renewal though answers take longer than a third.
func (r *renewals) endpoints() []string {
	all := r.g.s.conn.KeepAliveEndpoints()
	return slices.Repeat(all, 1+2/len(all))
}

// wait is the time until the next renewal is to be sent.
func (r *renewals) wait() time.Duration { return r.pause - r.g.s.clock.Since(r.planned) }

// send sends a renewal on the next free line, if there is one.
func (r *renewals) send(ctx context.Context) {
	g := r.g
	if r.tries > 0 {
		g.endanger(nil)
	}
	l := r.next(ctx)
	r.plan(g.patience())
	if l == nil {
		return
	}
	r.tries++
	r.last, l.busy, l.asked = l, true, g.s.clock.Now()
	r.running.Go(func() {
		g.note(g.s.conn.Unreachable(ctx))
		g.s.conn.Reconnect()
		answer, err := l.Renew(g.s.clock) // its stream has a life of its own, which ends with ctx
		select {
		case r.answers <- renewal{answer, l, err}:
		case <-ctx.Done():
		}
	})
}

// next returns the line for the next renewal, nil if all are waiting for an answer. The client's own connection comes
// first, and once more after a failure, because the client then moves on to another endpoint; after that the line that
// answered last. If no line is free, next replaces the one to an endpoint that has waited longest, if that is at least
// a third: its connection may be dead although the endpoint is not. There are three such lines or more, so by then three
// patiences have passed, which are more than a third.
func (r *renewals) next(ctx context.Context) *line {
	clk := r.g.s.clock
	if r.own.busy && clk.Since(r.own.asked) >= r.g.ttl { // an answer would come too late
		r.leave(r.own)
		r.own = r.line(ctx, "")
		r.broken = true // the stream that was left may break unnoticed
	}
	if !r.own.busy && (r.tries == 0 || r.tries == 1 && r.failed) {
		return r.own
	}
	endpoints := r.endpoints()
	places := len(endpoints) + 1
	oldest := r.g.third()
	silent := -1
	for i := range places {
		place := (r.turn + i) % places
		l := r.own
		if place < len(endpoints) {
			l = r.to(ctx, place, endpoints[place])
		}
		if !l.busy {
			r.turn = place
			return l
		}
		if waited := clk.Since(l.asked); l != r.own && waited >= oldest {
			oldest, silent = waited, place
		}
	}
	if silent < 0 {
		return nil
	}
	r.leave(r.beside[silent])
	delete(r.beside, silent)
	r.turn = silent
	return r.to(ctx, silent, endpoints[silent])
}

func (r *renewals) to(ctx context.Context, place int, endpoint string) *line {
	l := r.beside[place]
	if l != nil && l.Endpoint != endpoint { // the client's endpoints have changed
		r.leave(l)
		l = nil
	}
	if l == nil {
		l = r.line(ctx, endpoint)
		r.beside[place] = l
	}
	return l
}

// leave closes a line in the background, since closing a connection may take a while.
func (r *renewals) leave(l *line) {
	l.left = true
	r.running.Go(l.Close)
}

func (r *renewals) take(a renewal) {
	g, l := r.g, a.line
	l.busy = false
	switch {
	case l.left:
	case errors.Is(a.err, rpctypes.ErrLeaseNotFound):
		g.lose(&LostError{Reason: ReasonLeaseGone, LeaseID: g.id})
	case a.err != nil:
		r.fail(l, a.err)
	case !a.Sent.Later(g.lastSent()):
		// A renewal that was sent later was answered before this one: let the client look for a better endpoint for
		// this line. If all are slow, the line stays.
		l.Reset()
	default:
		r.succeed(a)
	}
}

func (r *renewals) fail(l *line, err error) {
	r.broken = true
	if !l.asked.Later(r.g.lastSent()) {
		return // a later renewal has been answered
	}
	r.g.endanger(err)
	r.turn++
	if r.tries == 1 {
		r.failed = true
		r.plan(etcd.Jitter(50 * time.Millisecond))
	}
}

func (r *renewals) succeed(a renewal) {
	g := r.g
	left := g.remaining()
	g.extend(a.Sent)
	g.reportRenewal(g.s.clock.Since(a.Sent), r.tries, left)
	g.suspect(a.Rev)
	// A cluster that is restored breaks its streams.
	if r.broken || a.Reopened {
		g.reclaim()
	}
	r.broken, r.failed, r.tries = false, false, 0
	pause := g.due()
	switch {
	case a.line != r.last: // that one is still under way
		pause = max(pause, r.pause-g.s.clock.Since(r.planned))
	case a.line == r.own: // the trouble is over, if there was any
		r.leaveBeside()
	}
	r.plan(pause)
	g.probe()
}

func (r *renewals) close() {
	r.leave(r.own)
	r.leaveBeside()
	r.running.Wait()
}

func (r *renewals) leaveBeside() {
	for _, l := range r.beside {
		r.leave(l)
	}
	clear(r.beside)
}

// probe finds out whether the session's watches have fallen silent. On a member that is cut off they do so without an
// error, and one that lags is behind what was known at the last probe. Renewals do not show that: they have a stream of
// their own, perhaps to another endpoint. Only renew calls probe.
func (g *grant) probe() {
	key, ever := g.anyKey()
	if !ever {
		return
	}
	least := g.probed
	g.probed = g.s.revisions.Highest()
	g.once(&g.probing, func(ctx context.Context) {
		g.s.conn.Streams(g.queue.Bound).Probe(ctx, g.s.conn.Client, key, g.ttl/2, least)
	})
}

// third is a third of the TTL. A margin is at most that, so that one lost renewal leaves time for another.
func (g *grant) third() time.Duration { return g.ttl / 3 }

// untilRenewal is the time until a renewal must be sent.
func (g *grant) untilRenewal() time.Duration { return g.third() - g.s.clock.Since(g.lastSent()) }

// due is the time until the next renewal: up to a fifth of a third earlier than untilRenewal, at random, so that
// sessions that an outage has brought into step drift apart.
func (g *grant) due() time.Duration { return g.untilRenewal() - random(g.third()/5) }

// patience is how long a renewal may stay unanswered before another is sent beside it.
func (g *grant) patience() time.Duration {
	half := g.third() / 2
	return half - random(half/5)
}

// random returns a duration below n. Tests replace it to know when a renewal is sent.
var random = rand.N[time.Duration]
