//go:build unix

package command_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
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

// party is a contender that enters and leaves the queue of one name.
type party struct {
	client  *clientv3.Client
	session *lease.Session
	name    string
	owner   string
	leave   context.CancelFunc // nil while it is not in the queue
	in      chan unlocker      // the outcome of its acquisition
}

type unlocker interface {
	Unlock(ctx context.Context) error
}

// held is the handle of an acquisition, nil if that has failed.
func held[L unlocker](l L, err error) unlocker {
	if err != nil {
		return nil
	}
	return l
}

// key is the party's key in etcd, nil if it has none.
func (p *party) key(t *testing.T) *mvccpb.KeyValue {
	t.Helper()
	resp, err := p.client.Get(bounded(t), p.name+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		if string(kv.Value) == p.owner {
			return kv
		}
	}
	return nil
}

// enter begins an acquisition of one of three kinds, and returns when the party's key is in etcd.
func (p *party) enter(t *testing.T, kind int) {
	t.Helper()
	ctx, leave := context.WithCancel(context.WithoutCancel(t.Context()))
	p.leave, p.in = leave, make(chan unlocker, 1)
	go func() {
		switch kind {
		case 0:
			p.in <- held(p.session.RLock(ctx, p.name))
		case 1:
			p.in <- held(p.session.Permit(ctx, p.name, 3))
		default:
			p.in <- held(p.session.Lock(ctx, p.name))
		}
	}()
	require.Eventually(t, func() bool { return p.key(t) != nil }, patience, time.Millisecond)
}

// exit ends the party's hold or wait in one of several ways, and returns when its key is gone.
func (p *party) exit(t *testing.T, way int) {
	t.Helper()
	switch key := p.key(t); {
	case key == nil:
	case way == 0:
		_, err := p.client.Revoke(bounded(t), clientv3.LeaseID(key.Lease))
		require.NoError(t, err)
	case way == 1:
		err := lease.Release(bounded(t), p.client, p.name, lease.ReleaseOptions{Mode: lease.ReleaseNow, Revision: key.CreateRevision})
		if !errors.Is(err, lease.ErrNotHeld) { // the party waits
			require.NoError(t, err)
		}
	}
	p.leave()
	if l := <-p.in; l != nil {
		_ = l.Unlock(bounded(t)) // fails if the lock was lost
	}
	p.leave = nil
	require.Eventually(t, func() bool { return p.key(t) == nil }, patience, time.Millisecond)
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
	parties := make([]*party, 5)
	for i := range parties {
		owner := fmt.Sprintf("host-%d/17", i)
		parties[i] = &party{client: client, session: newSession(t, client, owner), name: name, owner: owner}
	}
	p := open(t, of(page, name))
	chance := rand.New(rand.NewPCG(1, 2))
	change := func() {
		one := parties[chance.IntN(len(parties))]
		if one.leave == nil {
			one.enter(t, chance.IntN(5))
		} else {
			one.exit(t, chance.IntN(6))
		}
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
			resp, err := client.Get(bounded(t), "x")
			require.NoError(t, err)
			_, err = client.Compact(bounded(t), resp.Header.Revision)
			require.NoError(t, err)
			second.Restore()
		case 700, 800:
			granted, err := client.Grant(bounded(t), 2) // a key as etcd's own packages write it, which expires
			require.NoError(t, err)
			_, err = client.Put(bounded(t), name+"/"+hex(granted.ID), "", clientv3.WithLease(granted.ID))
			require.NoError(t, err)
		}
		change()
		p.showsTheSame(t, client, name)
	}
	for _, one := range parties {
		if one.leave != nil {
			one.exit(t, 2)
		}
	}
	p.showsTheSame(t, client, name)
	p.has(t, "#log", "etcd did not answer: holds may be missing")
}
