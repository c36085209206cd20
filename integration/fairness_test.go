package integration_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// stay is one contender's stay in etcd's queue, as the server has it.
type stay struct {
	lease       string // whose key it is
	key         string
	from, until int64 // the revisions of its creation and its deletion
}

// stays watches a queue and yields all stays in it, in the order of their creation, when n have ended.
func stays(t *testing.T, srv *etcdtest.Server, name string, n int) func() []stay {
	t.Helper()
	watch := srv.Client(t).Watch(t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	created := <-watch
	require.NoError(t, created.Err())
	return func() []stay {
		var list []stay
		at := map[string]int{}
		for ended := 0; ended < n; {
			resp := <-watch
			require.NoError(t, resp.Err())
			// A hand-over's put comes before its deletion or after it: they are of one revision.
			for _, ev := range resp.Events {
				key := string(ev.Kv.Key)
				if ev.IsCreate() {
					owner, _, _ := strings.Cut(strings.TrimPrefix(key, name+"/"), "-")
					at[key] = len(list)
					list = append(list, stay{lease: owner, key: key, from: ev.Kv.CreateRevision})
				} else if ev.Type == clientv3.EventTypeDelete {
					list[at[key]].until = ev.Kv.ModRevision
					ended++
				}
			}
		}
		return list
	}
}

// TestLock_fairness is P2 over sessions with several goroutines, single clients and etcd's own mutexes. Turns are taken in
// the order in which contenders entered etcd's queue. A session stands there once: between two turns of it, everybody who
// stood in the queue when the first one ended has had a turn. So nobody in the queue waits for more turns than there were
// contenders before it.
func TestLock_fairness(t *testing.T) {
	t.Parallel()
	const sessions, goroutines, singles, mutexes, rounds = 4, 4, 2, 2, 20
	const turns = (sessions*goroutines + singles + mutexes) * rounds
	srv := etcdtest.Start(t, etcdtest.Options{})
	history := stays(t, srv, "n", turns)

	var mu sync.Mutex // guards keys
	var keys []string // of the holders, in the order of their turns
	var wg sync.WaitGroup
	contend := func(p interopPeer, goroutines int) {
		for range goroutines {
			wg.Go(func() {
				for range rounds {
					held, err := p.lock(bounded(t), "n")
					if err != nil {
						t.Errorf("%s: %v", p.name, err)
						return
					}
					mu.Lock()
					keys = append(keys, held.key)
					mu.Unlock()
					assert.NoError(t, held.unlock(bounded(t)), p.name)
				}
			})
		}
	}
	for range sessions {
		contend(ourPeer(t, srv), goroutines)
	}
	for range singles {
		contend(ourPeer(t, srv), 1)
	}
	for range mutexes {
		contend(mutexPeer(t, srv), 1)
	}
	wg.Wait()
	require.Len(t, keys, turns)

	list := history()
	turn := map[int64]int{} // of each stay, by its creation
	for n, s := range list {
		require.Equal(t, s.key, keys[n], "turn %d", n)
		turn[s.from] = n
	}
	var longest int
	for n, s := range list {
		before := 0
		for _, other := range list[:n] {
			if other.until > s.from { // it still stood there when s entered
				before++
				require.NotEqual(t, other.lease, s.lease, "a session stands in the queue once")
			}
		}
		// The turns from its entry to its own: of those that ended after it had entered.
		waited := 0
		for _, other := range list {
			if other.until > s.from && other.from < s.from {
				waited++
			}
		}
		require.LessOrEqual(t, waited, before)
		longest = max(longest, before)

		again := n + 1
		for again < len(list) && list[again].lease != s.lease {
			again++
		}
		if again == len(list) {
			continue
		}
		for m, other := range list {
			if m != n && other.from < s.until && other.until > s.until { // it stood there when s's turn ended
				require.Less(t, turn[other.from], again, "%s had no turn between two of %s", other.key, s.key)
			}
		}
	}
	require.LessOrEqual(t, longest, sessions+singles+mutexes)
	require.Greater(t, longest, 2, "there was a queue")
	awaitQueue(t, srv, "n", 0)
}
