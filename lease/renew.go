package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/etcd"
)

// renew keeps the lease alive until it is lost or ctx ends; see [grant.watchDeadline] for its deadline.
//
// A renewal is due when most of a third of the TTL has gone since the last acknowledged one was sent. It goes over a stream on the client's own connection. While it is not answered, one more is sent beside it
// each half of a third, over a stream of its own to one endpoint, in turn: a second stream on the client's connection might
// meet the same sick endpoint. None is taken back, because an answer that is late but within the deadline is as good as
// any: its own send time counts. One that fails is repeated soon, and then at the same intervals. "Lease not found" is final
// at once.
func (g *grant) renew(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	r := &renewals{g: g, answers: make(chan renewal), beside: make(map[int]*line), turn: rand.N(len(g.s.conn.KeepAliveEndpoints()))}
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

// renewals of one lease. Only [grant.renew] uses them.
type renewals struct {
	g       *grant
	own     *line         // on the client's own connection
	beside  map[int]*line // to one endpoint each, by its place in the client's list
	turn    int           // the place whose turn it is, or the number of endpoints for own
	last    *line         // that was used
	answers chan renewal
	running sync.WaitGroup

	sent    []clock.Instant // when the last ones were sent, no more than [renewals.most]
	planned clock.Instant   // when the next one was planned
	pause   time.Duration   // and how long after that it is to be sent

	tries  int  // since the last answer
	failed bool // the first of them
	broken bool // a stream has, since the last answer
}

// line is a stream and what is under way on it.
type line struct {
	*etcd.KeepAlive

	busy  bool          // a renewal is
	asked clock.Instant // when it was asked for
	left  bool          // nobody waits for it
}

// renewal is the outcome of one.
type renewal struct {
	etcd.Renewal

	line *line
	err  error
}

func (r *renewals) line(ctx context.Context, endpoint string) *line {
	g := r.g
	return &line{KeepAlive: g.s.conn.NewKeepAlive(ctx, g.id, endpoint, 2*g.third())}
}

// plan has the next renewal sent after pause.
func (r *renewals) plan(pause time.Duration) { r.planned, r.pause = r.g.s.clock.Now(), pause }

// most is how many renewals may be sent in a third: one more than there are endpoints, whatever etcd does.
func (r *renewals) most() int { return 1 + len(r.g.s.conn.KeepAliveEndpoints()) }

// wait is the time until the next renewal is to be sent.
func (r *renewals) wait() time.Duration {
	clk := r.g.s.clock
	left := r.pause - clk.Since(r.planned)
	if n := len(r.sent) - r.most(); n >= 0 {
		left = max(left, r.g.third()-clk.Since(r.sent[n]))
	}
	return left
}

// send sends a renewal on the line whose turn it is. Who has not answered yet is not asked again.
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
	r.sent = append(r.sent, l.asked)
	r.sent = r.sent[max(0, len(r.sent)-r.most()):]
	r.running.Go(func() {
		g.note(g.s.conn.Unreachable(ctx))
		g.s.conn.Reconnect()
		answer, err := l.Renew(g.s.clock) //nolint:contextcheck // its stream has a life of its own, which ends with ctx
		select {
		case r.answers <- renewal{answer, l, err}:
		case <-ctx.Done():
		}
	})
}

// next is the line for the next renewal, nil if all wait for an answer. The client's own connection comes first, and once
// more after a failure, since it moves on to another endpoint then; after that the line that has answered last. If none is
// free, the one to an endpoint that has waited longest is made anew, if that is for a third: its connection may be dead, and
// the endpoint not.
func (r *renewals) next(ctx context.Context) *line {
	clk := r.g.s.clock
	if r.own.busy && clk.Since(r.own.asked) >= r.g.ttl { // an answer would come too late
		r.leave(r.own)
		r.own = r.line(ctx, "")
	}
	if !r.own.busy && (r.tries == 0 || r.tries == 1 && r.failed) {
		return r.own
	}
	endpoints := r.g.s.conn.KeepAliveEndpoints()
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
	if l != nil && l.Endpoint != endpoint { // the client was given others
		r.leave(l)
		l = nil
	}
	if l == nil {
		l = r.line(ctx, endpoint)
		r.beside[place] = l
	}
	return l
}

// leave closes a line in the background: to close a connection may take a while.
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
		// One that was sent later was answered before: the client may find a better endpoint for it. If all are slow, it
		// stays.
		l.Reset()
	default:
		r.succeed(a)
	}
}

func (r *renewals) fail(l *line, err error) {
	r.broken = true
	if !l.asked.Later(r.g.lastSent()) {
		return // another has been answered
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
	g.tellRenewal(g.s.clock.Since(a.Sent), r.tries, left)
	g.suspect(a.Rev)
	// No cluster is restored while a stream of its lasts.
	if r.broken || a.Reopened {
		g.reclaim()
	}
	r.broken, r.failed, r.tries = false, false, 0
	pause := g.due()
	switch {
	case a.line != r.last: // that is under way still
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

// third of the TTL. A margin is no longer than that, so that a renewal which is lost leaves time for another.
func (g *grant) third() time.Duration { return g.ttl / 3 }

// untilRenewal is the time until a renewal is due at the latest.
func (g *grant) untilRenewal() time.Duration { return g.third() - g.s.clock.Since(g.lastSent()) }

// due is the time until the next renewal is due: somewhat before a third has gone since the last one was sent, by a random
// part, so that sessions which an outage has brought into step get out of it.
func (g *grant) due() time.Duration { return g.untilRenewal() - random(g.third()/5) }

// patience is how long a renewal is waited for before another is sent beside it.
func (g *grant) patience() time.Duration {
	half := g.third() / 2
	return half - random(half/5)
}

// random is a duration below n. Tests without it know when a renewal is sent.
var random = rand.N[time.Duration]
