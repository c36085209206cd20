package cluster_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// turnLog is the order in which locks were granted, as those saw it who held them.
type turnLog struct {
	mu   sync.Mutex // guards last
	last map[string]fence.Token
	n    int
}

// take notes a grant, while the lock is held, and reports the token before it.
func (g *turnLog) take(l *lease.Lock) fence.Token {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := g.last[l.Name()]
	g.last[l.Name()] = l.Token()
	g.n++
	return last
}

// allTakeTurns lets each session take each name many times, all at once.
func allTakeTurns(t *testing.T, srv *etcdtest.Server, sessions []*lease.Session, names, turns int, log *turnLog) {
	t.Helper()
	var wg sync.WaitGroup
	for _, s := range sessions {
		for name := range names {
			wg.Go(func() {
				for range turns {
					l, err := s.Lock(rig.Bounded(t), fmt.Sprintf("n%d", name))
					if err != nil {
						assert.Fail(t, "not granted", "%v", err)
						return
					}
					assert.Greater(t, l.Token(), log.take(l))
					kvs := srv.KeyValues(t, l.Key())
					if assert.Len(t, kvs, 1) {
						assert.Equal(t, kvs[0].CreateRevision, l.Token().Revision())
					}
					if err := l.Unlock(rig.Bounded(t)); err != nil {
						assert.Fail(t, "not unlocked", "%v", err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// The tokens of a name only grow, over hand-overs between sessions and a restart of the server, and are the keys' create revisions.
func TestToken_grows(t *testing.T) {
	t.Parallel()
	const names, turns = 3, 10
	srv := etcdtest.Start(t, etcdtest.Options{})
	var sessions []*lease.Session
	for range 4 {
		sessions = append(sessions, rig.NewSession(t, srv.Client(t), lease.Options{}))
	}
	log := &turnLog{last: map[string]fence.Token{}}
	allTakeTurns(t, srv, sessions, names, turns, log)
	over := rig.MustLock(t, sessions[0], "n0")
	require.Greater(t, over.Token(), log.take(over))

	srv.Restart(t)

	require.NoError(t, over.Err())
	require.NoError(t, over.Unlock(rig.Bounded(t)))
	allTakeTurns(t, srv, sessions, names, turns, log)
	require.Equal(t, 2*len(sessions)*names*turns+1, log.n)

	// A new era beats everything, as after a restore that took the revisions back.
	raised := rig.MustLock(t, rig.NewSession(t, srv.Client(t), lease.Options{Era: 1}), "n0")
	require.Greater(t, raised.Token(), log.last["n0"])
	require.Equal(t, fence.Token(1<<48|raised.Token().Revision()), raised.Token())
	require.Empty(t, srv.Keys(t, "n1/"))
}
