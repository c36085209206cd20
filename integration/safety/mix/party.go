package mix

import (
	"cmp"
	"context"
	"fmt"
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
	quiet   bool                   // it only stays, so that only a renewal can report the restore to it
}

// open opens a session. closeSessions closes it.
func (p *party) open(ctx context.Context, era uint16) (err error) {
	p.era = era
	p.session, err = lease.NewSession(ctx, p.etcd, lease.Options{TTL: p.ttl, Owner: p.name, Era: era})
	return err
}

// tenant is a handle, its party and its name.
type tenant struct {
	hold
	party *party
	name  string
}

// newcomers starts the clients that come after the restore.
func (r *restoration) newcomers(ctx context.Context) ([]*party, error) {
	var parties []*party
	for i := range newcomers {
		id, err := r.run.secured.newIdentity(userOf(ofNewcomer, i))
		if err != nil {
			return nil, err
		}
		c, err := newClient(ctx, r.run.tape, id, r.run.cluster.Endpoints(), r.run.opts.TTL, false)
		if err != nil {
			return nil, err
		}
		r.late = append(r.late, c)
		parties = append(parties, &party{
			restoration: r, name: c.name, etcd: c.etcd, ttl: r.run.opts.TTL, session: c.current(), tokens: map[string]fence.Token{},
		})
	}
	return parties, nil
}

// closeSessions closes the sessions of these parties.
func (r *restoration) closeSessions(ctx context.Context, parties []*party) {
	var wg sync.WaitGroup
	for _, p := range parties {
		if p.session == nil {
			continue
		}
		wg.Go(func() {
			defer func() { p.session = nil }()
			closing, cancel := context.WithTimeout(ctx, served(r.run.opts.TTL))
			defer cancel()
			if err := p.session.Close(closing); err != nil {
				r.wrong("a session of %s in era %d: %v", p.name, p.era, err)
			}
		})
	}
	wg.Wait()
}

// ready waits until every name that all parties want has a mark, and every party a token, of that revision or above. It
// also waits until each party that is to stay holds its lock.
func (r *restoration) ready(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		missing := r.missing(revision)
		if missing == "" {
			return nil
		}
		sleep(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return fmt.Errorf("mix: restore: %s has not come to revision %d in a minute", missing, revision)
		}
	}
}

func (r *restoration) missing(revision int64) string {
	marks := r.store.guard.Marks()
	for _, name := range r.rush {
		if marks[name].Revision() < revision {
			return name
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	stay := map[*party]bool{}
	for _, t := range r.live {
		stay[t.party] = stay[t.party] || t.name == t.party.stays
	}
	for _, p := range r.parties {
		if p.session != nil && (!p.quiet && p.granted < revision || p.stays != "" && !stay[p]) {
			return p.name
		}
	}
	return ""
}

// has reports whether a party has got a token of that revision or above.
func (r *restoration) has(p *party, revision int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.granted >= revision
}

// took adds a handle that was granted, and checks its token; left removes a handle that was released.
func (r *restoration) took(p *party, name string, h hold) {
	r.mu.Lock()
	r.live[h] = &tenant{hold: h, party: p, name: name}
	p.granted = max(p.granted, h.Token().Revision())
	why := ""
	if before := p.tokens[name]; h.Token() < before {
		why = fmt.Sprintf("%s was given token %s after token %s, without an error that reports the restore", p.name, h.Token().Text(), before.Text())
	}
	if !shared(h) { // readers may come in any order
		p.tokens[name] = h.Token()
	}
	if p.era == 0 {
		r.highest = max(r.highest, h.Token())
	} else {
		why = cmp.Or(why, stranger(h.Token(), r.highest))
	}
	r.mu.Unlock()
	if why != "" {
		r.wrong("%s: %s", name, why)
	}
}

func (r *restoration) left(h hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, h)
}

// leave closes all sessions and the clients that came late. It revokes the leases that are left: the restore may bring
// back leases of closed sessions.
func (r *restoration) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, served(r.run.opts.TTL))
	defer cancel()
	r.closeSessions(ctx, r.parties)
	own := map[clientv3.LeaseID]bool{}
	for _, c := range r.run.clients {
		own[c.current().Status().LeaseID] = true
	}
	for _, c := range r.late {
		_ = c.close(ctx) // its session is closed
	}
	_ = insist(ctx, func(ctx context.Context) error { // closeClients finds the leases that are left
		resp, err := r.run.etcd.Leases(ctx)
		if err != nil {
			return err
		}
		for _, l := range resp.Leases {
			if own[l.ID] {
				continue
			}
			if _, err := r.run.etcd.Revoke(ctx, l.ID); err != nil {
				return err
			}
		}
		return nil
	})
}
