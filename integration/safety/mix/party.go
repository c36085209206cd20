package mix

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// party is a client in a restore.
type party struct {
	*restoration
	*client
	stays   string                 // the name that its first witness holds for as long as it can; "": none
	granted int64                  // the highest revision of its tokens; guarded by the restoration's mu
	tokens  map[string]fence.Token // the last of each name; guarded by the restoration's mu
}

// newParty adds a party, whose client has no session yet.
func (r *restoration) newParty(c *client, stays string) *party {
	p := &party{restoration: r, client: c, stays: stays, tokens: map[string]fence.Token{}}
	r.parties = append(r.parties, p)
	return p
}

// join opens a session. leave closes it.
func (p *party) join(ctx context.Context, era uint16) {
	p.era = era
	require.NoError(p.tb, insist(ctx, p.open))
}

func (r *restoration) leave(ctx context.Context, parties []*party) {
	var wg sync.WaitGroup
	for _, p := range parties {
		wg.Go(func() {
			if err := closeSession(ctx, p.current()); err != nil {
				r.wrong("a session of %s in era %d: %v", p.name, p.era, err)
			}
		})
	}
	wg.Wait()
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

// ready waits until every name that all parties want has a mark, and every party a token, of that revision or above. It
// also waits until each party that is to stay holds its lock.
func (r *restoration) ready(ctx context.Context, revision int64) {
	missing := ""
	await(ctx, 5*patience, func(context.Context) (bool, error) {
		missing = r.missing(revision)
		return missing == "", nil
	})
	require.Empty(r.tb, missing, "it has not come to revision %d", revision)
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
		if p.granted < revision || !stay[p] {
			return p.name
		}
	}
	return ""
}

// took adds a handle that was granted, and checks its token; left removes a handle that was released.
func (p *party) took(h *held) {
	p.restoration.mu.Lock()
	defer p.restoration.mu.Unlock()
	p.live[h] = p
	p.granted = max(p.granted, h.token.Revision())
	if before := p.tokens[h.resource]; h.token < before {
		p.wrong("%s was given token %s of %s after token %s, without an error that reports the restore",
			p.name, h.token.Text(), h.resource, before.Text())
	}
	if !h.shared { // readers may come in any order
		p.tokens[h.resource] = h.token
	}
}

func (p *party) left(h *held) {
	p.restoration.mu.Lock()
	defer p.restoration.mu.Unlock()
	delete(p.live, h)
}
