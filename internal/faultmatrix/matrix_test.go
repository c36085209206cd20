// Package faultmatrix_test replays single faults against sessions, locks and elections: every fault at each of the
// first four requests of every kind that every scenario sends. One oracle checks all cases, see check.
package faultmatrix_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
)

func TestMain(m *testing.M) {
	// The host's boot clock runs on while a bubble's clock stands still, so deadlines would be early.
	clock.System = clock.Clock{}
	os.Exit(m.Run())
}

const (
	fewest = 11000 // the least number of cases
	kinds  = 13    // of requests
	most   = 4     // the most requests of one kind that faults hit in one scenario
)

// Whatever fault hits whatever request, there are never two holders, tokens grow, nothing is left behind, and losses
// are reported. To run one case alone, give its name to -run.
func TestMatrix(t *testing.T) {
	every, from := 1, 0
	if fakeetcd.RaceDetector && !strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		every = 9               // the detector is slow
		from = rand.IntN(every) // over many runs all cases are played; a failed one has a name that -run repeats
	}
	planned, chosen, cases, missed := 0, 0, 0, 0
	hits := make(map[string]int) // by kind
	for _, sc := range scenarios {
		seen := play(t, fault{}, sc.run, "", 0).seen // the requests of the scenario without a fault
		for _, kind := range slices.Sorted(maps.Keys(seen)) {
			for nth := 1; nth <= min(most, seen[kind]); nth++ {
				for _, f := range faults {
					if !f.applies(kind) {
						continue
					}
					if planned++; planned%every != from {
						continue
					}
					chosen++
					t.Run(fmt.Sprintf("%s/%s %d/%s", sc.name, kind, nth, f.name), func(t *testing.T) {
						cases++
						if play(t, f, sc.run, kind, nth).hit.IsZero() {
							missed++
						} else {
							hits[kind]++
						}
					})
				}
			}
		}
	}
	t.Logf("%d cases of %d; in %d of them the request was not sent that the fault is for; hits: %v", cases, planned, missed, hits)
	if planned < fewest {
		t.Errorf("%d cases are planned, want %d", planned, fewest)
	}
	if cases < chosen {
		return // -run has selected some
	}
	if missed > cases/10 {
		t.Errorf("%d of %d cases had no fault", missed, cases)
	}
	if len(hits) < kinds {
		t.Errorf("faults hit %d kinds of requests, want %d", len(hits), kinds)
	}
}

// play runs one case in a bubble of its own. A goroutine that is left behind or waits for ever ends the bubble with a
// panic, and the testing package prints the case's name below it.
func play(t *testing.T, f fault, scenario func(*world, *actor), kind string, nth int) (w *world) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w = &world{t: t, srv: fakeetcd.New(), fault: f, seen: make(map[string]int)}
		t.Cleanup(w.srv.Close)
		// Renewals keep the clock of the bubble running, so a case that hangs is not detected as a deadlock.
		defer time.AfterFunc(time.Hour, func() { panic("the case hangs: " + t.Name()) }).Stop()
		w.subject = w.actor()
		w.aim(kind, nth)
		if f.suspends {
			w.host = hosttest.Start(t, false)
		}
		w.subject.join()
		clock.System = clock.Clock{} // the rivals' hosts are not suspended
		scenario(w, w.subject)
		w.tasks.Wait()
		if w.subject.s != nil {
			w.probe()
		}
		for _, a := range w.actors {
			a.close()
		}
		time.Sleep(30 * time.Second) // for late requests to arrive, and for the lease of a lost Grant to expire
		synctest.Wait()
		w.check()
		w.empty()
		for _, text := range w.wrong {
			t.Error(text)
		}
	})
	return w
}

// With this TTL a renewal is due every 2 s, the deadline is 5.4 s after its send, and a first attempt takes at most
// 1.5 s.
const ttl = 6 * time.Second

// class is what a fault may cause.
type class int

const (
	harmless  class = iota // every call succeeds and no lock is lost
	refusing               // the call that it hits may fail with the server's error
	cancelled              // the call that it hits may fail with its caller's cause
	operator               // locks whose keys the operator has touched are lost, and no others
	outage                 // the subject's locks may be lost
)

// fault happens to one request of the subject.
type fault struct {
	name  string
	class class
	is    fakeetcd.Fault
	lasts time.Duration // until its effects are over
	// deed is called just before the server acts, or just after that if answered is set.
	deed     func(*world)
	answered bool
	suspends bool // it suspends the subject's host
}

var faults = slices.Concat([]fault{
	{name: "request lost", is: fakeetcd.Fault{Lose: fakeetcd.Request}},
	{name: "answer lost", is: fakeetcd.Fault{Lose: fakeetcd.Answer}},
	{name: "unavailable", is: fakeetcd.Fault{Err: fakeetcd.ErrUnavailable}},
	{name: "unavailable, though done", is: fakeetcd.Fault{Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable}},
	{name: "no leader", is: fakeetcd.Fault{Err: rpctypes.ErrGRPCNoLeader}},
	{name: "timed out", is: fakeetcd.Fault{Err: rpctypes.ErrGRPCTimeout}},
	{name: "timed out, though done", is: fakeetcd.Fault{Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCTimeout}},
	{name: "request slow", is: fakeetcd.Fault{Before: time.Second}, lasts: time.Second},
	{name: "request late", is: fakeetcd.Fault{Before: 2300 * time.Millisecond, Late: true}, lasts: 2300 * time.Millisecond},
	{name: "request later", is: fakeetcd.Fault{Before: 5 * time.Second, Late: true}, lasts: 5 * time.Second},
	{name: "request after all", is: fakeetcd.Fault{Before: 20 * time.Second, Late: true}, lasts: 20 * time.Second},
	{name: "answer slow", is: fakeetcd.Fault{After: time.Second}, lasts: time.Second},
	{name: "answer late", is: fakeetcd.Fault{After: 4 * time.Second}, lasts: 4 * time.Second},
	{name: "answer past the deadline", is: fakeetcd.Fault{After: ttl}, lasts: ttl},
	{name: "no space", class: refusing, is: fakeetcd.Fault{Err: rpctypes.ErrGRPCNoSpace}},
	{name: "denied", class: refusing, is: fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied}},
},
	moments(fault{name: "cut for less than the TTL", lasts: 1900 * time.Millisecond, deed: cutFor(1900 * time.Millisecond)}),
	moments(fault{name: "cut for more than the TTL", class: outage, lasts: 2*ttl + time.Second, deed: cutFor(2*ttl + time.Second)}),
	[]fault{{name: "renewals slow, then cut", class: outage, lasts: 4*time.Second + 2*ttl, deed: slowThenCut}},
	moments(fault{name: "host suspended", class: outage, suspends: true, deed: func(w *world) { w.host.Suspend(2 * ttl) }}),
	moments(fault{name: "lease revoked", class: operator, deed: (*world).revoke}),
	moments(fault{name: "key deleted", class: operator, deed: (*world).deleteKeys}),
	moments(fault{name: "key overwritten", class: operator, deed: (*world).overwriteKeys}),
	moments(fault{name: "compaction", deed: (*world).compact}),
	moments(fault{name: "leader change", deed: (*world).changeLeader}),
	moments(fault{name: "caller gives up", class: cancelled, deed: func(w *world) { w.subject.giveUp() }}),
)

// moments returns f with its deed before and after the server acts.
func moments(f fault) []fault {
	after := f
	f.name += " before"
	after.name, after.answered = after.name+" after", true
	return []fault{f, after}
}

func cutFor(d time.Duration) func(*world) {
	return func(w *world) {
		w.subject.c.Cut()
		time.AfterFunc(d, w.subject.c.Restore)
	}
}

// slowThenCut answers renewals late, and cuts the link when one has been answered: a late answer must not extend the
// deadline, which counts from the send.
func slowThenCut(w *world) {
	c := w.subject.c
	well := c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{After: 1500 * time.Millisecond})
	time.AfterFunc(4*time.Second, c.Cut)
	time.AfterFunc(4*time.Second+2*ttl, func() {
		well()
		c.Restore()
	})
}

// applies reports whether a fault can happen to a request of that kind.
func (f fault) applies(kind string) bool {
	switch {
	case kind == "Events": // no request: events can be late, or a deed can be done when they are sent
		return f.deed != nil && f.answered || f.name == "answer slow" || f.name == "answer late"
	case f.class == refusing: // a watch is refused with another error
		return kind != "Watch" && kind != "Revoke"
	case f.class == cancelled: // no caller waits for a renewal
		return kind != "KeepAliveOnce"
	}
	return true
}

// on returns the fault of the network that does f in w.
func (f fault) on(w *world) fakeetcd.Fault {
	is := f.is
	is.Times = 1
	if f.deed != nil {
		do := func() { f.deed(w) }
		if f.answered {
			is.OnAnswer = do
		} else {
			is.OnRequest = do
		}
	}
	return is
}

// kindOf names the kind of a request: its method and, for a transaction, its purpose.
func kindOf(call fakeetcd.Call) string {
	switch r := call.Request.(type) {
	case *pb.TxnRequest:
		return "Txn " + purpose(r)
	case *pb.WatchResponse:
		return "Events"
	}
	return call.Method.String()
}

func purpose(r *pb.TxnRequest) string {
	seen := make(map[string]bool)
	inspect(r, seen)
	var list []string
	for _, what := range []string{"enter", "write", "touch", "leave"} {
		if seen[what] {
			list = append(list, what)
		}
	}
	if len(list) == 0 {
		return "look"
	}
	return strings.Join(list, " and ") // no "+": -run takes a regular expression
}

func inspect(r *pb.TxnRequest, seen map[string]bool) {
	compared := slices.ContainsFunc(r.Compare, func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD })
	for _, op := range slices.Concat(r.Success, r.Failure) {
		switch put := op.GetRequestPut(); {
		case put != nil && put.IgnoreLease:
			seen["touch"] = true
		case put != nil && compared:
			seen["write"] = true
		case put != nil:
			seen["enter"] = true
		case op.GetRequestDeleteRange() != nil:
			seen["leave"] = true
		case op.GetRequestTxn() != nil:
			inspect(op.GetRequestTxn(), seen)
		}
	}
}
