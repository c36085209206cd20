//go:build unix

package command_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// showsTheSame waits until the page shows what Inspect says.
func (p *tab) showsTheSame(t *testing.T, client *clientv3.Client, name string) {
	t.Helper()
	var want string
	for began := time.Now(); time.Since(began) < patience; {
		q, err := lease.Inspect(rig.Bounded(t), client, name)
		require.NoError(t, err)
		want = quoted(t, rowsOf(q))
		// A lease may have ended since Inspect looked.
		if p.comes(t, queueShown+" === "+quoted(t, want)+` && document.body.dataset.state === "live"`, time.Second) {
			return
		}
	}
	require.JSONEq(t, want, eval[string](t, p, queueShown))
	require.Fail(t, "the page is not live")
}

// enter puts a key of a writer, a reader or the holder of a permit.
func enter(t *testing.T, client *clientv3.Client, name string, kind, n int) contender {
	t.Helper()
	form := [][2]string{{"/", "-a"}, {"/r", "-a"}, {"/~slot/1/", "-of3-a"}}[kind]
	return contend(t, client, 3600, name+form[0], form[1], fmt.Sprint("host/", n))
}

// leave ends a hold or a wait: its lease ends, or somebody deletes the key.
func (c contender) leave(t *testing.T, client *clientv3.Client, revoke bool) {
	t.Helper()
	var err error
	if revoke {
		_, err = client.Revoke(rig.Bounded(t), c.lease)
	} else {
		_, err = client.Delete(rig.Bounded(t), c.key)
	}
	require.NoError(t, err)
}

const changes = 1000

// The page shows what Inspect says after each of many changes: also after an endpoint was lost, after all endpoints
// were lost, and after etcd has compacted the changes of that time.
func TestUI_showsWhatInspectSays(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	first, second := faults.NewProxy(t, srv.Endpoint()), faults.NewProxy(t, srv.Endpoint())
	_, page := startUI(t, first.Addr()+","+second.Addr())
	const name = "jobs/nightly"
	p := open(t, of(page, name))
	chance := rand.New(rand.NewPCG(1, 2))
	var queue []contender
	change := func() {
		if n := len(queue); n == 5 || chance.IntN(6) < n {
			i := chance.IntN(n)
			queue[i].leave(t, client, chance.IntN(2) == 0)
			queue = slices.Delete(queue, i, i+1)
			return
		}
		queue = append(queue, enter(t, client, name, chance.IntN(3), chance.IntN(1000)))
	}
	for n := range changes {
		switch n {
		case 300:
			first.Refuse()
		case 400:
			first.Restore()
		case 500:
			second.Refuse()
		case 600:
			first.Refuse()
			p.await(t, `document.body.dataset.state === "stale" && document.getElementById("asof").textContent.startsWith("As of ")`)
			for range 20 {
				change()
			}
			resp, err := client.Get(rig.Bounded(t), "x")
			require.NoError(t, err)
			_, err = client.Compact(rig.Bounded(t), resp.Header.Revision)
			require.NoError(t, err)
			second.Restore()
		case 700, 800:
			contend(t, client, 2, name+"/", "", "") // a key as etcd's own packages write it, which expires
		}
		change()
		p.showsTheSame(t, client, name)
	}
	for _, one := range queue {
		one.leave(t, client, true)
	}
	p.showsTheSame(t, client, name)
	p.has(t, "#log", "etcd did not answer: holds may be missing")
}
