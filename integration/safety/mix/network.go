package mix

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/history"
)

const lateAnswers = "late answers, then none"

// networkFaults affect all requests and answers of a client.
func networkFaults() []kind {
	all := func(do func(*faults.Proxy)) func(*strike) bool {
		return onClient(func(s *strike, c *client) bool { return s.onLink(c.link, do) })
	}
	return []kind{
		{"black hole", all((*faults.Proxy).BlackHole)},
		{"requests held", all(func(p *faults.Proxy) { p.Requests.Hold() })},
		{"answers held", all(func(p *faults.Proxy) { p.Answers.Hold() })},
		{"reset", all((*faults.Proxy).Cut)},
		{"refuse", all((*faults.Proxy).Refuse)},
		{"slow", all(delay)},
		{"dead endpoint", onClient(func(s *strike, c *client) bool {
			return s.onLink(&link{proxies: []*faults.Proxy{pick(s.rng, c.proxies)}}, (*faults.Proxy).BlackHole)
		})},
		{lateAnswers, onClient(lateThenNone)},
	}
}

// onClient injects a fault at a client of the slot's share: every third, others in each round. So two faults do not undo
// each other.
func onClient(do func(*strike, *client) bool) func(*strike) bool {
	return func(s *strike) bool {
		first := (s.share + s.round.number) % 3
		c := s.clients[first+3*s.rng.IntN((len(s.clients)-first+2)/3)]
		s.begin(c.name)
		return do(s, c)
	}
}

func (l *link) traffic() (sum faults.Traffic) {
	l.each(func(p *faults.Proxy) { p.Traffic(&sum) })
	return sum
}

// onLink does something to all proxies of a link for a while. It has met something if connections broke or bytes
// arrived: these were held or delayed, or came over a new connection.
func (s *strike) onLink(l *link, do func(*faults.Proxy)) bool {
	before := l.traffic()
	l.each(do)
	s.lastAny()
	after := l.traffic()
	l.each((*faults.Proxy).Restore)
	return after.Connections < before.Connections || after.Received > before.Received
}

func delay(p *faults.Proxy) {
	const d = 150 * time.Millisecond // each way: a renewal still gets through
	p.Requests.Delay(d)
	p.Answers.Delay(d)
}

// lateThenNone delays the answers to the last renewals that get through: a client that counts a lease from the answer
// takes it for longer than it is. The fault has met something if both handles are lost at their deadlines: the one that
// is asked, and the one whose context alone is checked.
func lateThenNone(s *strike, c *client) (hit bool) {
	const late = ttl * 9 / 20 // even the answer to the second of two renewals is not too late yet
	s.alone(c, "", exclusive, func(asked *held) {
		s.alone(c, history.ByContext, exclusive, func(watched *held) {
			s.peers(c, func(peer ...*held) {
				c.each(func(p *faults.Proxy) { p.Answers.Delay(late) })
				s.last(inTTL*3/4, inTTL)
				c.each(func(p *faults.Proxy) { p.Requests.Hold() }) // requests sent before that are still answered
				s.awaitEnd(append(peer, asked, watched)...)
				c.each((*faults.Proxy).Restore)
			})
			hit = asked.expired() && watched.expired()
		})
	})
	return hit
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
		ctx, cancel := context.WithTimeout(s.life, 3*served) // so that the round ends even if replace hangs
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
		j := c.in.Inject(s.tb, rule)
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
	return ok && slices.ContainsFunc(txn.Success, func(op *etcdserverpb.RequestOp) bool {
		return wanted(op) || op.GetRequestTxn() != nil && does(op.GetRequestTxn(), wanted)
	})
}
