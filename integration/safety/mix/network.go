package mix

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/history"
)

const lateAnswers = "late answers, then none"

// networkFaults strike all requests and answers of a client.
func networkFaults() []kind {
	return []kind{
		{"black hole", onLink((*faults.Proxy).BlackHole, waiting)},
		{"requests held", onLink(func(p *faults.Proxy) { p.Requests.Hold() }, waiting)},
		{"answers held", onLink(func(p *faults.Proxy) { p.Answers.Hold() }, waiting)},
		{"reset", onLink((*faults.Proxy).Cut, nil)},
		{"refuse", onLink((*faults.Proxy).Refuse, nil)},
		{"slow", onLink(delay, received)},
		{"dead endpoint", onClient(deadEndpoint)},
		{lateAnswers, onClient(lateThenNone)},
	}
}

// onClient strikes a client that no other fault has reserved.
func onClient(do func(*strike, *client) bool) func(*strike) bool {
	return func(s *strike) bool {
		c, giveBack := take(s, s.clients)
		if c == nil {
			return false
		}
		defer giveBack()
		s.begin(c.name)
		return do(s, c)
	}
}

// measure tells by two sums of a link's traffic, from before and from the end, whether a fault has met anything.
type measure func(before, after traffic) bool

// traffic is the sum of all proxies, in both directions.
type traffic struct{ received, waiting int64 }

func (l *link) traffic() (sum traffic) {
	l.each(func(p *faults.Proxy) {
		for _, t := range []faults.Traffic{p.Requests.Traffic(), p.Answers.Traffic()} {
			sum.received += t.Received
			sum.waiting += t.Waiting()
		}
	})
	return sum
}

func waiting(_, after traffic) bool       { return after.waiting > 0 }
func received(before, after traffic) bool { return after.received > before.received }

// onLink puts all proxies of a client into a state for a while. Without a measure, the fault has met something if there
// were connections.
func onLink(do func(*faults.Proxy), met measure) func(*strike) bool {
	return onClient(func(s *strike, c *client) bool {
		before, connections := c.link.traffic(), 0
		c.link.each(func(p *faults.Proxy) {
			connections += p.Connections()
			do(p)
		})
		s.lastAny()
		after := c.link.traffic()
		c.link.each((*faults.Proxy).Restore)
		if met == nil {
			return connections > 0
		}
		return met(before, after)
	})
}

func delay(p *faults.Proxy) {
	const d = 150 * time.Millisecond // each way: a renewal still gets through
	p.Requests.Delay(d)
	p.Answers.Delay(d)
}

// lateThenNone lets the last renewals that get through be answered late: whoever counts a lease from the answer counts too
// long then. It has met something if a handle whose context alone is looked at is lost at its deadline, and one that is asked.
func lateThenNone(s *strike, c *client) bool {
	var loners []*loner
	for _, by := range []history.Verb{"", history.ByContext} {
		if l := s.newLoner(c, by, exclusive); l != nil {
			loners = append(loners, l)
		}
	}
	late, ttl := s.ttl*9/20, int(s.ttl.Milliseconds()) // of two renewals, the second is not too late yet
	c.link.each(func(p *faults.Proxy) { p.Answers.Delay(late) })
	s.last(ttl*3/4, ttl)
	c.link.each(func(p *faults.Proxy) { p.Requests.Hold() }) // and what was asked before is still answered
	s.awaitEnd(loners)
	c.link.each((*faults.Proxy).Restore)
	expired := 0
	for _, l := range loners {
		if l.leave() {
			expired++
		}
	}
	return expired == 2
}

// deadEndpoint holds what goes to one of three members.
func deadEndpoint(s *strike, c *client) bool {
	p := pick(s.rng, c.link.proxies)
	p.BlackHole()
	s.lastAny()
	held := p.Requests.Traffic().Waiting()+p.Answers.Traffic().Waiting() > 0
	p.Restore()
	return held
}

// messageFaults are answers that a client never gets.
func messageFaults() []kind {
	return []kind{
		{"lost grant", losing(faults.LeaseGrant, nil, replaced)},
		{"lost acquisition", losing(faults.Txn, puts, nil)},
		{"lost read", losing(faults.Range, nil, nil)},
		{"lost watch", losing(faults.Watch, nil, nil)},
		{"lost release", losing(faults.Txn, deletes, nil)},
		{"lost revocation", losing(faults.LeaseRevoke, nil, replaced)},
		{"lost renewal", losing(faults.LeaseKeepAlive, nil, nil)},
	}
}

// replaced has the client replace its session, which grants and revokes a lease.
func replaced(s *strike, c *client) {
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.life, 3*served(s.ttl)) // the round ends, whatever is wrong
		defer cancel()
		_ = c.replace(ctx)
	})
}

// losing loses the answers to a few messages of one kind.
func losing(method string, match func(any) bool, provoke func(*strike, *client)) func(*strike) bool {
	return func(s *strike) bool {
		c := pick(s.rng, s.clients)
		s.begin(c.name)
		rule := faults.Rule{Fault: faults.LoseAnswer, Method: method, Match: match, Times: 1 + s.rng.IntN(3)}
		// A network does not lose one message of a stream on which others follow. Renewals do not follow one that is not answered.
		rule.Silent = method != faults.Watch && s.rng.IntN(2) == 0
		var j *faults.Injection
		if err := c.link.scaffold.try(func() { j = c.in.Inject(&c.link.scaffold, rule) }); err != nil {
			return false
		}
		defer j.Remove()
		if provoke != nil {
			provoke(s, c)
		}
		select {
		case <-j.Hit():
			s.last(100, 400)
		case <-s.ctx.Done():
		case <-time.After(2 * time.Second):
		}
		return j.Hits() > 0
	}
}

// puts says whether a transaction puts a key, as an acquisition does; deletes, whether it deletes one.
func puts(message any) bool {
	return does(message, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestPut() != nil })
}

func deletes(message any) bool {
	return does(message, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestDeleteRange() != nil })
}

// onlyReleases says whether a transaction that deletes a key may arrive twice: an acquisition that shares its commit may not, as
// the session knows from the answer that it will not come again.
func onlyReleases(message any) bool {
	if !deletes(message) {
		return false
	}
	for _, op := range message.(*etcdserverpb.TxnRequest).Success {
		if part := op.GetRequestTxn(); part != nil && puts(part) && !deletes(part) {
			return false
		}
	}
	return true // in a flat transaction all is done or nothing, and the comparison for the deletion does not hold again
}

func does(message any, wanted func(*etcdserverpb.RequestOp) bool) bool {
	txn, ok := message.(*etcdserverpb.TxnRequest)
	if !ok {
		return false
	}
	for _, op := range txn.Success {
		if wanted(op) || op.GetRequestTxn() != nil && does(op.GetRequestTxn(), wanted) {
			return true
		}
	}
	return false
}
