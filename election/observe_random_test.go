package election_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
)

// model applies the rule of who leads to the whole key space: the oldest contender of "n", until its key is deleted or
// taken off its lease.
type model struct {
	leader  election.Leader
	highest int64
	shown   []election.Leader
}

// at takes the whole key space of one revision.
func (m *model) at(kvs []*mvccpb.KeyValue) {
	var all []election.Leader
	for _, kv := range kvs {
		id, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), "n/"), "-")
		if kv.Lease != 0 && id == strconv.FormatInt(kv.Lease, 16) {
			all = append(all, election.Leader{
				Value: string(kv.Value), Revision: kv.CreateRevision, Key: string(kv.Key), Lease: clientv3.LeaseID(kv.Lease),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b election.Leader) int { return int(a.Revision - b.Revision) }) // kvs are in the order of keys
	i := slices.IndexFunc(all, func(l election.Leader) bool { return l.Key == m.leader.Key && l.Revision == m.leader.Revision })
	if m.leader = none; len(all) > 0 {
		m.leader = all[max(i, 0)]
	}
	l := m.leader
	if l.Revision < m.highest {
		l = none
	}
	m.highest = max(m.highest, l.Revision)
	if len(m.shown) == 0 || l != m.shown[len(m.shown)-1] {
		m.shown = append(m.shown, l)
	}
}

// Observe yields the leaders of the model, whatever happens to its watches and to the keys below the name: changes of
// several keys in one revision, changes of leases, keys of nested names, stray keys.
func TestObserve_agreesWithTheKeySpace(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			rnd := rand.New(rand.NewPCG(1, seed))
			var leases []clientv3.LeaseID
			var keys []string
			for range 3 {
				leases = append(leases, s.grant(t))
				for _, suffix := range []string{"", "-a", "-b"} {
					keys = append(keys, keyOf("n", leases[len(leases)-1], suffix))
				}
			}
			keys = append(keys, "n/stray", "n/~own/x", "n/x/"+strconv.FormatInt(int64(leases[0]), 16), "n/"+strconv.FormatInt(int64(leases[1]), 16)+"/x")
			var m model
			a := observe(t, s.c, "n")
			a.sees(t, none)
			m.at(nil)
			for range 60 {
				var ops []clientv3.Op
				for _, i := range rnd.Perm(len(keys))[:1+rnd.IntN(3)] {
					switch {
					case rnd.IntN(3) == 0:
						ops = append(ops, clientv3.OpDelete(keys[i]))
					case i < 9 && rnd.IntN(4) > 0:
						ops = append(ops, clientv3.OpPut(keys[i], strconv.Itoa(rnd.IntN(3)), clientv3.WithLease(leases[i/3])))
					default:
						ops = append(ops, clientv3.OpPut(keys[i], "", clientv3.WithLease(leases[rnd.IntN(3)])))
					}
				}
				_, err := s.own.Txn(t.Context()).Then(ops...).Commit()
				require.NoError(t, err)
				m.at(s.srv.Keys("n/"))
				switch rnd.IntN(8) {
				case 0:
					s.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
				case 1, 2:
					time.Sleep(time.Duration(rnd.Int64N(int64(catchUp))))
				case 3:
					synctest.Wait()
				}
			}
			time.Sleep(time.Minute)
			a.sees(t, m.shown[1:]...)
		})
	}
}
