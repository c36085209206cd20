package mix

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// processFaults strike clients that are processes of their own.
func processFaults() []kind {
	return []kind{{"client stopped", stopHolder}, {history.ClientKilled, killHolder}}
}

// awaitHolding returns a process of its own that holds something, and is not struck by another fault until it is given
// back. It returns nil if the round ends before.
func (s *strike) awaitHolding() (b *berth, giveBack func()) {
	b = s.round.takeBerth(s.rng)
	if b == nil {
		return nil, nil
	}
	for {
		held, changed := s.tape.tally.held(b.holder.name + "/")
		if len(held) > 0 {
			return b, b.giveBack
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			b.giveBack()
			return nil, nil
		}
	}
}

// stopHolder stops a process for longer than its lease lives, and lets it go on.
func stopHolder(s *strike) bool {
	b, giveBack := s.awaitHolding()
	if b == nil {
		return false
	}
	defer giveBack()
	s.begin(b.holder.name)
	hit := b.holder.signal(syscall.SIGSTOP)
	ttl := int(s.ttl.Milliseconds())
	s.last(ttl+200, ttl+2000)
	b.holder.signal(syscall.SIGCONT)
	return hit
}

func killHolder(s *strike) bool {
	b, giveBack := s.awaitHolding()
	if b == nil {
		return false
	}
	defer giveBack()
	s.begin(b.holder.name)
	b.holder.kill()
	s.tape.tally.forget(b.holder.name)
	s.last(50, 500)
	return b.launch() == nil
}

// clusterFaults strike members, one at a time but for the loss of the quorum.
func clusterFaults() []kind {
	return []kind{
		{"leader moved", moveLeader},
		{"leader stopped", stopLeader},
		{"member killed", killMember},
		{"rolling restart", rollingRestart},
		{"quorum lost", loseQuorum},
		{"slow member", slowMember},
	}
}

// leader returns the member that leads, nil if it cannot be told.
func (s *strike) leader() (m *etcdproc.Process, id uint64) {
	for _, m := range s.cluster.Members {
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		status, err := s.etcd.Status(ctx, m.Endpoint())
		cancel()
		if err == nil && status.Leader == status.Header.MemberId {
			return m, status.Leader
		}
	}
	return nil, 0
}

func moveLeader(s *strike) bool {
	leader, id := s.leader()
	if leader == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	members, err := s.etcd.MemberList(ctx)
	if err != nil {
		return false
	}
	others := slices.DeleteFunc(members.Members, func(m *etcdserverpb.Member) bool { return m.ID == id })
	if len(others) == 0 {
		return false
	}
	// A client of its own: the request must go to the leader.
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{leader.Endpoint()}, Logger: s.etcd.GetLogger()})
	if err != nil {
		return false
	}
	defer func() { _ = etcd.Close() }()
	s.begin(leader.Endpoint())
	_, err = etcd.MoveLeader(ctx, pick(s.rng, others).ID)
	return err == nil
}

// stopLeader keeps the leader from the others until they have elected another one, and lets it come back with what it
// believes.
func stopLeader(s *strike) bool {
	leader, _ := s.leader()
	if leader == nil {
		return false
	}
	s.begin(leader.Endpoint())
	return paused(s, []*etcdproc.Process{leader}, 1500, 4000)
}

// loseQuorum stops two members of three.
func loseQuorum(s *strike) bool {
	members := slices.Clone(s.cluster.Members)
	s.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	s.begin(members[0].Endpoint() + " and " + members[1].Endpoint())
	return paused(s, members[:2], 500, 2500)
}

func paused(s *strike, members []*etcdproc.Process, from, to int) bool {
	hit := true
	woken := s.expectWoken(members)
	for _, m := range members {
		hit = m.Pause() == nil && hit
	}
	s.last(from, to)
	woken.begin()
	for _, m := range members {
		hit = m.Resume() == nil && hit
	}
	woken.end()
	return hit
}

// slowMember lets a member run for a part of the time only, as one does that waits for its disk.
func slowMember(s *strike) bool {
	m := pick(s.rng, s.cluster.Members)
	s.begin(m.Endpoint())
	woken := s.expectWoken([]*etcdproc.Process{m})
	woken.begin()
	defer woken.end()
	for range 8 + s.rng.IntN(10) {
		if m.Pause() != nil {
			return false
		}
		s.last(50, 250)
		if m.Resume() != nil {
			return false
		}
		s.last(10, 60)
	}
	return true
}

func killMember(s *strike) bool {
	m := pick(s.rng, s.cluster.Members)
	s.begin(m.Endpoint())
	if m.Kill() != nil {
		return false
	}
	s.last(100, 2000)
	return restart(s, m)
}

// restart is done whatever the round does: its end waits for it.
func restart(s *strike, m *etcdproc.Process) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), time.Minute)
	defer cancel()
	return m.Restart(ctx) == nil
}

func rollingRestart(s *strike) bool {
	s.begin("all members")
	for _, m := range s.cluster.Members {
		if !restart(s, m) {
			return false
		}
		s.last(100, 500)
	}
	return true
}

// storageFaults are what an operator's cron jobs do.
func storageFaults() []kind {
	return []kind{{"compaction", compact}, {"defragmentation", defragment}}
}

// compact discards what the watch has seen, and with it what the clients' watches may have missed.
func compact(s *strike) bool {
	rev := s.watch.revision()
	if rev <= s.compacted {
		return false
	}
	s.begin("all members")
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
	defer cancel()
	_, err := s.etcd.Compact(ctx, rev)
	if err != nil {
		return false
	}
	s.compacted = rev
	return true
}

func defragment(s *strike) bool {
	m := pick(s.rng, s.cluster.Members)
	s.begin(m.Endpoint())
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
	defer cancel()
	_, err := s.etcd.Defragment(ctx, m.Endpoint())
	return err == nil
}

// operatorFaults take a lock from its holder.
func operatorFaults() []kind {
	return []kind{{history.OperatorRevokes, revoke}, {history.OperatorDeletes, remove}}
}

// victim returns the key of somebody who holds it, "" if there is none.
func (s *strike) victim() string {
	held, _ := s.tape.tally.held("")
	held = slices.DeleteFunc(held, func(e history.Event) bool { return e.Key == "" })
	if len(held) == 0 {
		return ""
	}
	return pick(s.rng, held).Key
}

func revoke(s *strike) bool {
	key := s.victim()
	text, _, _ := strings.Cut(key[strings.LastIndexByte(key, '/')+1:], "-")
	id, ok := leaseID(text)
	if !ok {
		return false
	}
	s.begin(text)
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
	defer cancel()
	_, err := s.etcd.Revoke(ctx, id)
	return err == nil
}

func remove(s *strike) bool {
	key := s.victim()
	if key == "" {
		return false
	}
	s.begin(key)
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
	defer cancel()
	resp, err := s.etcd.Delete(ctx, key)
	if err != nil || resp.Deleted == 0 {
		return false
	}
	s.revision = resp.Header.Revision
	return true
}

// loadFaults are too much of something.
func loadFaults() []kind {
	return []kind{{"cancel storm", storm}, {"no time to run", starve}}
}

// storm lets many wait for a hot name and gives them all up at once.
func storm(s *strike) bool {
	const many = 40
	c, name := pick(s.rng, s.clients), pick(s.rng, s.round.names.Hot)
	s.begin(c.name)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	session, ttl := c.current(), s.ttl
	var wg sync.WaitGroup
	var mu sync.Mutex
	gaveUp := 0
	for range many {
		wg.Go(func() {
			w := &worker{crew: &crew{log: s.tape, ttl: ttl, draining: s.ctx.Done()}, name: c.name + "/storm", rng: nil}
			op := w.enter(name, "")
			l, err := session.Lock(ctx, name)
			if err != nil {
				w.log.Record(history.Event{Kind: history.GiveUp, Op: op, Outcome: history.Failed, Error: err.Error()})
				mu.Lock()
				defer mu.Unlock()
				gaveUp++
				return
			}
			w.storm(op, name, l) //nolint:contextcheck // who gives up waiting still lets go
		})
	}
	s.last(20, 300)
	cancel()
	wg.Wait()
	return gaveUp > 0
}

// storm holds for no time at all.
func (w *worker) storm(op int64, name string, l *lease.Lock) {
	w.log.Record(history.Event{Kind: history.Grant, Op: op, Actor: w.name, Name: name, Token: l.Token(), Key: l.Key()})
	w.release(op, l.Unlock)
}

// starve keeps the processors busy with work and with garbage.
func starve(s *strike) bool {
	s.begin("all clients")
	ctx, cancel := context.WithTimeout(s.ctx, millis(s.rng, 300, 1500))
	defer cancel()
	var wg sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var garbage [][]byte
			for ctx.Err() == nil {
				garbage = append(garbage, make([]byte, 64<<10))
				if len(garbage) > 100 {
					garbage = nil
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
	return true
}
