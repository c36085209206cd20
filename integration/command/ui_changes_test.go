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
	"github.com/leasefence/leasefence/lease"
)

// showsTheSame waits until the page shows what Inspect says.
func (p *tab) showsTheSame(t *testing.T, client *clientv3.Client, name string) {
	t.Helper()
	var want string
	for began := time.Now(); time.Since(began) < patience; {
		q, err := lease.Inspect(bounded(t), client, name)
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

// contender is a key in the queue of a name, and its lease.
type contender struct {
	key   string
	lease clientv3.LeaseID
}

// enter puts a key of a writer, a reader or the holder of a permit.
func enter(t *testing.T, client *clientv3.Client, name string, kind int) contender {
	t.Helper()
	granted, err := client.Grant(bounded(t), 3600)
	require.NoError(t, err)
	key := fmt.Sprintf([]string{"%s/%x-a", "%s/r%x-a", "%s/~slot/1/%x-of3-a"}[kind], name, int64(granted.ID))
	_, err = client.Put(bounded(t), key, "host/"+hex(granted.ID), clientv3.WithLease(granted.ID))
	require.NoError(t, err)
	return contender{key, granted.ID}
}

// leave ends a hold or a wait: its lease ends, or somebody deletes the key.
func (c contender) leave(t *testing.T, client *clientv3.Client, revoke bool) {
	t.Helper()
	var err error
	if revoke {
		_, err = client.Revoke(bounded(t), c.lease)
	} else {
		_, err = client.Delete(bounded(t), c.key)
	}
	require.NoError(t, err)
}

const changes = 300

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
		queue = append(queue, enter(t, client, name, chance.IntN(3)))
	}
	for n := range changes {
		switch n {
		case 90:
			first.Refuse()
		case 120:
			first.Restore()
		case 150:
			second.Refuse()
		case 180:
			first.Refuse()
			p.await(t, `document.body.dataset.state === "stale" && document.getElementById("asof").textContent.startsWith("As of ")`)
			for range 20 {
				change()
			}
			resp, err := client.Get(bounded(t), "x")
			require.NoError(t, err)
			_, err = client.Compact(bounded(t), resp.Header.Revision)
			require.NoError(t, err)
			second.Restore()
		case 210, 240:
			granted, err := client.Grant(bounded(t), 2) // a key as etcd's own packages write it, which expires
			require.NoError(t, err)
			_, err = client.Put(bounded(t), name+"/"+hex(granted.ID), "", clientv3.WithLease(granted.ID))
			require.NoError(t, err)
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
