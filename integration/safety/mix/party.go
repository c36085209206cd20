package mix

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// party is a client in a restore, with its own session.
type party struct {
	*restoration
	name    string
	etcd    *clientv3.Client
	ttl     time.Duration
	stays   string // the name that its first witness holds for as long as it can; "": none
	session *lease.Session
	era     uint16
	granted int64                  // the highest revision of its tokens; guarded by mu
	tokens  map[string]fence.Token // the last of each name; guarded by mu
}

func (r *restoration) newParty(name string, etcd *clientv3.Client) *party {
	return &party{restoration: r, name: name, etcd: etcd, ttl: ttl, tokens: map[string]fence.Token{}}
}

// open opens a session. closeSessions closes it.
func (p *party) open(ctx context.Context, era uint16) (err error) {
	p.era = era
	p.session, err = lease.NewSession(ctx, p.etcd, lease.Options{TTL: p.ttl, Owner: p.name, Era: era})
	return err
}

func (p *party) start(wg *sync.WaitGroup, work func(*witness)) {
	for i := range witnesses {
		w := p.witness(i)
		wg.Go(func() { work(w) })
	}
}

func (p *party) witness(i int) *witness {
	name := p.name + "/witness " + strconv.Itoa(i)
	return &witness{party: p, stays: i == 0 && p.stays != "" && p.era == 0, worker: &worker{
		crew: &crew{log: p.tape}, name: name, rng: rand.New(rand.NewPCG(p.opts.Seed, hash(name)+uint64(p.era))),
	}}
}

func (r *restoration) newcomers(ctx context.Context) (parties []*party, err error) {
	for i := range newcomers {
		c, err := r.newClient(ctx, userOf(ofNewcomer, i), false)
		if err != nil {
			return nil, err
		}
		r.late = append(r.late, c)
		p := r.newParty(c.name, c.etcd)
		p.session = c.current()
		parties = append(parties, p)
	}
	return parties, nil
}

func (r *restoration) closeSessions(ctx context.Context, parties []*party) {
	var wg sync.WaitGroup
	for _, p := range parties {
		if p.session == nil {
			continue
		}
		wg.Go(func() {
			closing, cancel := context.WithTimeout(ctx, served)
			defer cancel()
			if err := p.session.Close(closing); err != nil {
				r.wrong("a session of %s in era %d: %v", p.name, p.era, err)
			}
			p.session = nil
		})
	}
	wg.Wait()
}

// ready waits until every name that all parties want has a mark, and every party a token, of that revision or above. It
// also waits until each party that is to stay holds its lock.
func (r *restoration) ready(ctx context.Context, revision int64) error {
	missing := ""
	await(ctx, time.Minute, func(context.Context) (bool, error) {
		missing = r.missing(revision)
		return missing == "", nil
	})
	if missing != "" {
		return fmt.Errorf("mix: restore: %s has not come to revision %d in a minute", missing, revision)
	}
	return nil
}

func (r *restoration) missing(revision int64) string {
	marks := r.store.guard.Marks()
	for _, name := range r.rush {
		if !r.opts.Unfenced && marks[name].Revision() < revision {
			return name
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	stay := map[*party]bool{}
	for h, p := range r.live {
		stay[p] = stay[p] || h.resource == p.stays
	}
	for _, p := range r.parties {
		if p.session != nil && (p.granted < revision || !stay[p]) {
			return p.name
		}
	}
	return ""
}

// took adds a handle that was granted, and checks its token; left removes a handle that was released.
func (p *party) took(h *held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[h] = p
	p.granted = max(p.granted, h.token.Revision())
	if before := p.tokens[h.resource]; h.token < before {
		p.wrong("%s was given token %s of %s after token %s, without an error that reports the restore",
			p.name, h.token.Text(), h.resource, before.Text())
	}
	if !h.shared { // readers may come in any order
		p.tokens[h.resource] = h.token
	}
	switch {
	case p.era == 0:
		p.highest = max(p.highest, h.token)
	case h.token.Era() != nextEra || h.token <= p.highest:
		p.wrong("token %s of %s was granted in era %d, after token %s", h.token.Text(), h.resource, nextEra, p.highest.Text())
	}
}

func (p *party) left(h *held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, h)
}
