package mix

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/history"
)

const lateAnswers = "late answers, then none"

// networkFaults affect all requests and answers of a client.
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

// onClient injects a fault at a client that no other fault has reserved.
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

// measure reports whether a fault has met anything, by the link's traffic before the fault and at its end.
type measure func(before, after traffic) bool

// traffic is the number of bytes in all proxies of a link, in both directions.
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

// onLink changes all proxies of a client for a while. Without a measure, the fault has met something if there were
// connections.
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

// lateThenNone delays the answers to the last renewals that get through: a client that counts a lease from the answer
// takes it for longer than it is. The fault has met something if both handles are lost at their deadlines: the one that
// is asked, and the one whose context alone is checked.
func lateThenNone(s *strike, c *client) bool {
	var loners []*loner
	for _, by := range []history.Verb{"", history.ByContext} {
		if l := s.newLoner(c, by, exclusive); l != nil {
			loners = append(loners, l)
		}
	}
	late, ttl := s.ttl*9/20, int(s.ttl.Milliseconds()) // even the answer to the second of two renewals is not too late yet
	c.link.each(func(p *faults.Proxy) { p.Answers.Delay(late) })
	s.last(ttl*3/4, ttl)
	c.link.each(func(p *faults.Proxy) { p.Requests.Hold() }) // requests sent before that are still answered
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

// deadEndpoint holds all requests to one of three members, and its answers.
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

// replaced makes the client replace its session, which revokes a lease and grants another.
func replaced(s *strike, c *client) {
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.life, 3*served(s.ttl)) // so that the round ends even if replace hangs
		defer cancel()
		_ = c.replace(ctx)
	})
}

// losing loses the answers to a few messages of one kind. provoke, if not nil, makes the client send such a message.
func losing(method string, match func(any) bool, provoke func(*strike, *client)) func(*strike) bool {
	return func(s *strike) bool {
		c := pick(s.rng, s.clients)
		s.begin(c.name)
		rule := faults.Rule{Fault: faults.LoseAnswer, Method: method, Match: match, Times: 1 + s.rng.IntN(3)}
		// A network never loses one message of a stream and delivers the next one, so a watch is never silent. A
		// session sends no renewal on a stream whose last renewal was not answered.
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

// puts reports whether a transaction puts a key, as an acquisition does; deletes, whether it deletes one.
func puts(message any) bool {
	return does(message, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestPut() != nil })
}

func deletes(message any) bool {
	return does(message, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestDeleteRange() != nil })
}

// onlyReleases reports whether a transaction deletes a key and may arrive twice. It may not if an acquisition shares
// its commit: after the answer the session relies on it that the acquisition does not arrive again.
func onlyReleases(message any) bool {
	if !deletes(message) {
		return false
	}
	for _, op := range message.(*etcdserverpb.TxnRequest).Success {
		if part := op.GetRequestTxn(); part != nil && puts(part) && !deletes(part) {
			return false
		}
	}
	return true // a flat transaction is done as a whole or not at all, and its comparison for the deletion holds only once
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
