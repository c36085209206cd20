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
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// model applies the rule of who leads to the whole key space: the oldest contender of "n", until its key is deleted or
// taken off its lease.
type model struct {
	leader election.Leader
	views  []*view
}

// view is what an observer must see.
type view struct {
	*audience
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
	for _, v := range m.views {
		v.at(m.leader)
	}
}

func (v *view) at(l election.Leader) {
	if l.Revision < v.highest {
		l = none
	}
	v.highest = max(v.highest, l.Revision)
	if len(v.shown) == 0 || l != v.shown[len(v.shown)-1] {
		v.shown = append(v.shown, l)
	}
}

// Observe yields the leaders of the model, whatever happens to its watches and to the keys below the name: changes of
// several keys in one revision, changes of leases, keys of nested names, stray keys. So does an observer that comes later.
// Changes that are compacted before a broken watch can read them are skipped.
func TestObserve_agreesWithTheKeySpace(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			rnd := rand.New(rand.NewPCG(1, seed))
			compacts := seed%3 == 0
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
			join := func() {
				v := &view{audience: observe(t, s.c, "n")}
				v.at(m.leader)
				m.views = append(m.views, v)
				synctest.Wait()
			}
			join()
			for range 60 {
				var ops []clientv3.Op
				for _, i := range rnd.Perm(len(keys))[:1+rnd.IntN(3)] {
					switch {
					case rnd.IntN(3) == 0:
						ops = append(ops, clientv3.OpDelete(keys[i]))
					case i < 9 && (compacts || rnd.IntN(4) > 0):
						ops = append(ops, clientv3.OpPut(keys[i], strconv.Itoa(rnd.IntN(3)), clientv3.WithLease(leases[i/3])))
					default:
						ops = append(ops, clientv3.OpPut(keys[i], "", clientv3.WithLease(leases[rnd.IntN(3)])))
					}
				}
				_, err := s.own.Txn(t.Context()).Then(ops...).Commit()
				require.NoError(t, err)
				m.at(s.srv.Keys("n/"))
				switch rnd.IntN(10) {
				case 0, 1:
					if rnd.IntN(2) == 0 {
						time.AfterFunc(5*time.Second, s.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: rpctypes.ErrGRPCNoLeader}))
					}
					s.c.BreakWatches([]error{rpctypes.ErrGRPCNoLeader, fakeetcd.ErrUnavailable, rpctypes.ErrGRPCInvalidAuthToken}[rnd.IntN(3)])
				case 2, 3:
					time.Sleep(time.Duration(rnd.Int64N(int64(catchUp))))
				case 4:
					synctest.Wait()
				case 5:
					if compacts {
						require.NoError(t, s.srv.Compact(s.srv.Rev()))
					}
				case 6:
					if !compacts {
						time.Sleep(time.Minute) // until the others have seen the leader, whom another key may stand before by now
					}
					join()
				}
			}
			time.Sleep(time.Minute)
			for _, v := range m.views {
				if !compacts {
					v.sees(t, v.shown...)
					continue
				}
				got, rest := v.takes(), v.shown
				require.Equal(t, rest[len(rest)-1], got[len(got)-1])
				for _, l := range got {
					next := slices.Index(rest, l)
					require.GreaterOrEqual(t, next, 0, "%v in %v", got, v.shown)
					rest = rest[next+1:]
				}
			}
		})
	}
}
