package differential

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

var (
	seedFlag = flag.Uint64("seed", 0, "repeat the run of this `seed`")
	programs = flag.Int("programs", 80, "run `n` sequences of calls")
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// The fake answers as etcd does.
func TestFake(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	r := rand.New(rand.NewPCG(seed, 0))
	client := etcdtest.Start(t, etcdtest.Options{}).Client(t)
	drawn := make(map[string]int)
	for range *programs {
		p := make(program, 60)
		for i := range p {
			p[i] = r.Uint64()
		}
		fake, etcd := p.onFake(t), p.onEtcd(t, client)
		if at := firstDifference(fake, etcd); at >= 0 {
			p = p[:at+1].shrunk(func(p program) bool { return firstDifference(p.onFake(t), p.onEtcd(t, client)) >= 0 })
			fake, etcd = p.onFake(t), p.onEtcd(t, client)
		}
		require.Equal(t, list(etcd, answers), list(fake, answers), "seed %d; the calls are\n%s", seed, list(fake, requests))
		for _, s := range etcd {
			drawn[s.err]++
		}
	}
	for _, err := range errorsToDraw {
		require.Positive(t, drawn[err], "no call has drawn the error %q; seed %d, errors drawn: %v", err, seed, drawn)
	}
}

// errorsToDraw are the errors that the calls must draw, so that a change does not narrow the choice of calls unnoticed.
var errorsToDraw = []string{
	"etcdserver: key is not provided",
	"etcdserver: key not found",
	"etcdserver: value is provided",
	"etcdserver: lease is provided",
	"etcdserver: invalid sort option",
	"etcdserver: duplicate key given in txn request",
	"etcdserver: too many operations in txn request",
	"etcdserver: request is too large",
	"etcdserver: requested lease not found",
	"etcdserver: too large lease TTL",
	"etcdserver: mvcc: required revision has been compacted",
	"etcdserver: mvcc: required revision is a future revision",
	"mvcc: watcher range is empty",
	"rpc error: code = ResourceExhausted desc = trying to send message larger than max",
}

// program is a sequence of calls, one for each number. A call follows from its number and from what the party knows by
// then, so any part of a program is a program too.
type program []uint64

// run makes the calls and returns each with its answers.
func (p program) run(y *party, requests func() []string) (trace []step) {
	for _, seed := range p {
		y.now = step{}
		y.call(dice{rand.New(rand.NewPCG(seed, 0))})
		y.settle()
		y.now.requests = requests()
		trace = append(trace, y.now)
	}
	return trace
}

// onFake runs the program on a new fake.
func (p program) onFake(t *testing.T) (trace []step) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := fakeetcd.New()
		defer srv.Close()
		client := srv.NewClient(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		y := newParty(ctx, t, client.Client, client.Lease.(etcd.Opener).OpenKeepAlive)
		seen := len(client.Calls(fakeetcd.Any))
		trace = p.run(y, func() (requests []string) {
			for _, c := range client.Calls(fakeetcd.Any)[seen:] {
				seen++
				requests = append(requests, c.Method.String()+" "+y.text(c.Request.(proto.Message)))
			}
			return requests
		})
		cancel()
		synctest.Wait() // the client's Watcher may deadlock if it is closed before it has finished a watch that ended
	})
	return trace
}

// onEtcd runs the program on a real etcd, which all programs use one after the other.
func (p program) onEtcd(t *testing.T, client *clientv3.Client) []step {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	leases, err := client.Leases(ctx)
	require.NoError(t, err)
	for _, l := range leases.Leases {
		_, err := client.Revoke(ctx, l.ID)
		require.NoError(t, err)
	}
	_, err = client.Delete(ctx, "\x00", clientv3.WithFromKey())
	require.NoError(t, err)
	y := newParty(ctx, t, client, func(ctx context.Context, _ string) (pb.Lease_LeaseKeepAliveClient, error) {
		return pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx)
	})
	return p.run(y, func() []string { return nil })
}

// shrunk drops calls as long as the rest still fails.
func (p program) shrunk(fails func(program) bool) program {
	for size := (len(p) + 1) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(p); {
			if rest := slices.Concat(p[:i], p[i+size:]); fails(rest) {
				p = rest
			} else {
				i += size
			}
		}
	}
	return p
}

// step is one call with its answers.
type step struct {
	requests []string // as the fake got them
	answers  []string // to the call, and then the events that it caused
	err      string   // the text of the error among them
}

func firstDifference(a, b []step) int {
	for i := range a {
		if !slices.Equal(a[i].answers, b[i].answers) {
			return i
		}
	}
	return -1
}

// list formats a trace for an error.
func list(trace []step, of func(step) []string) string {
	var b strings.Builder
	for i, s := range trace {
		fmt.Fprintf(&b, "%d. %s\n", i+1, strings.Join(of(s), "\n   "))
	}
	return b.String()
}

func answers(s step) []string { return s.answers }

func requests(s step) []string { return s.requests }
