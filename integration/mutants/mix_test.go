package mutants_test

import (
	"flag"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var inMix = flag.String("mix", "", "let the random mix find the planted faults whose names match this `pattern`; takes minutes each")

// byMix is no killer, since no single assertion fails: the mix must find the fault by itself, in its default time.
var byMix = killer{"integration/safety/mix", "TestSafety", ""}

// plants are faults of kinds that unit tests might miss. Rows of one name are one fault.
var plants = []mutant{
	{"the deadline is counted from the answer, without a margin", "lease/grant.go", "return g.ttl - g.[-margin - g.-]s.clock.Since(g.sent)", byMix},
	{"the deadline is counted from the answer, without a margin", "lease/grant.go", "\t\tg.sent = [-sent-]{+g.s.clock.Now()+}\n", byMix},
	// The renewal loop checks the deadline too, so that check is removed.
	{"the deadline's timer is a second late", "lease/grant.go", "look.Reset(g.untilLook(){+ + time.Second+})", byMix},
	{"the deadline's timer is a second late", "lease/renew.go", "if [-!g.checkDeadline()-]{+g.remaining() < -time.Second+} {", byMix},
	{"a renewal after the deadline revives a handle", "lease/grant.go", "\t[-if !g.checkDeadline() {\n\t\treturn\n\t}\n\t-]g.mu.Lock()\n\tif sent.Later", byMix},
	{
		"a renewal after the deadline revives a handle", "lease/grant.go",
		"left <= [-0-]{+-g.ttl/8+} {\n\t\tg.lose(&LostError{Reason: ReasonDeadlinePassed, LeaseID: g.id, Err: failure})\n\t}\n\treturn !lost && left > [-0-]{+-g.ttl/8+}\n",
		byMix,
	},
	{"a key is deleted without a check of its owner", "internal/queue/enter.go", "[-If: []clientv3.Cmp{e.Held()}, -]Then: []*pb.RequestOp{e.delete()}", byMix},
	{"a key is handed over without a check of its owner", "internal/queue/enter.go", "txn.[-If, txn.Then = append(txn.If, leaving.Held()),-]{+Then =+} append(txn.Then, leaving.delete())", byMix},
	{"Do releases before its function has returned", "lease/lock.go", "\tdefer done()\n{+\tdefer context.AfterFunc(ctx, func() { _ = l.finish(ctx) })()\n+}", byMix},
	// Flat transactions have no plant: there all comparisons hold, and what a transaction reads is read again before it is
	// used.
	{"one of 200 transactions in a shared commit gets the result of its neighbour", "internal/etcd/lane.go", "\t\t\tResponses: nested.Responses,\n\t\t}\n{+\t\tif i > 0 && !results[i].Succeeded && results[i-1].Succeeded && len(results[i].Responses) == len(results[i-1].Responses) && (resp.Header.Revision+int64(i))%200 == 0 {\n\t\t\tresults[i] = results[i-1]\n\t\t}\n+}\t}\n", byMix},
	{"callers of a session are served in reverse", "lease/turn.go", "t.order[c.name] = [-append(order-]{+slices.Insert(order, min(len(order), 1)+}, c)", byMix},
	{"a guard accepts the token just below its mark", "fence/mark.go", "case b.Token < m.write{+-1+}:", byMix},
	{"a guard does not check again after a wait", "fence/mark.go", "if err := m.raise(resource, b); [-err != nil || -]fn == nil {", byMix},
	// The reader waits for the oldest writer only.
	{"a reader passes a writer that waits", "internal/queue/enter.go", "{+if set[i].Shared {\n\t\t\t\tnewest.Kvs, newest.Count = newest.Kvs[len(newest.Kvs)-1:], 1\n\t\t\t}\n\t\t\t+}ahead[i] = nearest(newest.Kvs, newest.Count)", byMix},
	{"a reader passes a writer that waits", "internal/queue/scan.go", "{+if e.Shared {\n\t\tkvs = kvs[len(kvs)-1:]\n\t}\n\t+}ahead := nearest(kvs, int64(len(kvs)))\n", byMix},
	{"a reader's claim does not raise the read mark", "fence/mark.go", "\t[-m.lift(b)-]{+if !b.read {\n\t\tm.lift(b)\n\t}+}\n\treturn nil\n", byMix},
	{"a set waits only in its first queue", "lease/acquire.go", "part.await(ctx, ahead[i]); [-err != nil-]{+true+} {", byMix},
	{"only one key of a set is watched", "lease/acquire.go", "c.[-each(func(c *contender) { c.g.guards.Add(&c.entry) }-]{+g.guards.Add(&c.entry+})\n\t\tif", byMix},
	{"only one key of a set is watched", "lease/acquire.go", "c.g.served.Store(true)\n\tc.[-each(func(c *contender) { c.g.guards.Add(&c.entry) }-]{+g.guards.Add(&c.entry+})", byMix},
	{"a node of a tree does not wait for the nodes above", "lease/acquire.go", "if ahead[i].None {+|| part.shared +}{", byMix},
	{"there is one slot more than permits", "lease/permit.go", "free := rand.IntN(s.of{+ + 1+})", byMix},
	{"a permit is taken ahead of those who wait for one", "internal/queue/slots.go", "[]clientv3.Cmp{[-turnstile.empty(), -]e.empty()}", byMix},
	{"Unlock deletes the key before the context ends", "lease/lock.go", "\t{+defer +}l.end(ErrUnlocked)\n", byMix},
	{"a third of the deletions of a holder's own keys is ignored", "internal/queue/guard.go", "case gone, ev.Kv.ModRevision <= e.Rev{+, ev.Kv.ModRevision%3 == 0+}:", byMix},
	{"a third of the deletions that a waiter waits for is ignored", "internal/queue/await.go", "case ev.Kv.ModRevision <= rev{+, ev.Kv.ModRevision%3 == 0+}:", byMix},
	{"an observer drops one event of a hundred", "election/hub.go", "case rev <= h.rev{+ || time.Now().UnixNano()/64%100 == 0+}:", byMix},
}

// The random mix finds each planted fault: go test ./mutants -run TestMix_finds -mix PATTERN -timeout 2h.
func TestMix_findsPlants(t *testing.T) {
	if *inMix == "" {
		return
	}
	b := newBench(t, plants...)
	pattern, err := regexp.Compile(*inMix)
	require.NoError(t, err, "-mix")
	var names []string
	for _, p := range plants {
		if pattern.MatchString(p.name) {
			names = append(names, p.name)
		}
	}
	require.NotEmpty(t, names, "-mix %q matches no plant", *inMix)
	for _, name := range slices.Compact(names) {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			output, err := b.run(byMix, name, "-test.timeout=0", "-duration=2m", "-first", "-histories="+t.TempDir())
			require.NoError(t, err)
			require.True(t, ended(output, "FAIL", byMix.test), "%s", output)
			found := regexp.MustCompile(`(?m)^ *I\d, round \d+: .*`).FindString(output)
			require.NotEmpty(t, found, "the mix has not found the plant:\n%s", output)
			t.Logf("after %v: %s", time.Since(began).Round(time.Second), found)
		})
	}
}
