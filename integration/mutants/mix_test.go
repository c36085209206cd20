package mutants_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var inMix = flag.String("mix", "", "let the random mix find the planted faults whose names match this `pattern`; takes minutes each")

// plant is a fault that the random mix must find by itself, in its default time. It is of a kind that unit tests might
// miss.
type plant struct {
	name    string
	changes []edit
}

// edit is a change of one file. The old text must be in it exactly once.
type edit struct{ file, old, new string }

var plants = []plant{
	{"the deadline is counted from the answer, without a margin", []edit{
		{"lease/grant.go", "return g.ttl - g.margin - g.s.clock.Since(g.sent)", "return g.ttl - g.s.clock.Since(g.sent)"},
		{"lease/grant.go", "\t\tg.sent = sent\n", "\t\tg.sent = g.s.clock.Now()\n"},
	}},
	// The renewal loop checks the deadline too, so that check is removed.
	{"the deadline's timer is a second late", []edit{
		{"lease/deadline.go", "look.Reset(g.untilLook())", "look.Reset(g.untilLook() + time.Second)"},
		{"lease/renew.go", "if !g.checkDeadline() {", "if g.remaining() < -time.Second {"},
	}},
	{"a late renewal revives a handle", []edit{
		{"lease/grant.go", "\tif !g.checkDeadline() {\n\t\treturn\n\t}\n\tg.mu.Lock()\n\tif sent.Later", "\tg.mu.Lock()\n\tif sent.Later"},
		{"lease/grant.go", "if !lost && left <= 0 {", "if !lost && left <= -g.ttl/8 {"},
		{"lease/grant.go", "return !lost && left > 0\n", "return !lost && left > -g.ttl/8\n"},
	}},
	{"a key is deleted without a check of its owner", []edit{
		{"internal/queue/enter.go", "If: []clientv3.Cmp{e.Held()}, Then: []*pb.RequestOp{e.delete()}", "Then: []*pb.RequestOp{e.delete()}"},
	}},
	{"a key is handed over without a check of its owner", []edit{
		{
			"internal/queue/enter.go", "txn.If, txn.Then = append(txn.If, leaving.Held()), append(txn.Then, leaving.delete())",
			"txn.Then = append(txn.Then, leaving.delete())",
		},
	}},
	{"Do releases before its function has returned", []edit{
		{"lease/do.go", "\tdefer done()\n", "\tdefer done()\n\tdefer context.AfterFunc(ctx, func() { _ = l.finish(ctx) })()\n"},
	}},
	// Flat transactions have no plant: there all comparisons hold, and what a transaction reads is read again before it is
	// used.
	{"one of 200 transactions in a shared commit gets the result of its neighbour", []edit{
		{"internal/etcd/carry.go", "\t\t\tResponses: nested.Responses,\n\t\t}\n\t}\n", "\t\t\tResponses: nested.Responses,\n\t\t}\n\t\tif i > 0 && !results[i].Succeeded && results[i-1].Succeeded && " +
			"len(results[i].Responses) == len(results[i-1].Responses) && (resp.Header.Revision+int64(i))%200 == 0 {\n\t\t\tresults[i] = results[i-1]\n\t\t}\n\t}\n"},
	}},
	{"callers of a session are served in reverse", []edit{
		{"lease/turn.go", "t.order[c.name] = append(order, c)", "t.order[c.name] = slices.Insert(order, min(len(order), 1), c)"},
	}},
	{"a guard accepts the token just below its mark", []edit{
		{"fence/mark.go", "case b.Token < m.write:", "case b.Token < m.write-1:"},
	}},
	{"a guard does not check again after a wait", []edit{
		{"fence/mark.go", "if err := m.raise(resource, b); err != nil || fn == nil {", "if err := m.raise(resource, b); fn == nil {"},
	}},
	// The reader waits for the oldest writer only.
	{"a reader passes a writer that waits", []edit{
		{"internal/queue/enter.go", "return nearest(newest.Kvs, newest.Count)", "if e.Shared {\n\t\treturn nearest(newest.Kvs[len(newest.Kvs)-1:], 1)\n\t}\n\treturn nearest(newest.Kvs, newest.Count)"},
		{"internal/queue/scan.go", "ahead := nearest(kvs, int64(len(kvs)))\n", "if e.Shared {\n\t\tkvs = kvs[len(kvs)-1:]\n\t}\n\tahead := nearest(kvs, int64(len(kvs)))\n"},
	}},
	{"a reader's claim does not raise the read mark", []edit{
		{"fence/mark.go", "\tm.lift(b)\n\treturn nil\n", "\tif !b.read {\n\t\tm.lift(b)\n\t}\n\treturn nil\n"},
	}},
	{"a set waits only in its first queue", []edit{
		{"lease/acquire.go", "part.await(ctx, ahead[i]); err != nil {", "part.await(ctx, ahead[i]); true {"},
	}},
	{"only one key of a set is watched", []edit{
		{"lease/acquire.go", "c.each(func(c *contender) { c.g.guards.Add(&c.entry) })\n\t\tif", "c.g.guards.Add(&c.entry)\n\t\tif"},
		{"lease/acquire.go", "c.g.served.Store(true)\n\tc.each(func(c *contender) { c.g.guards.Add(&c.entry) })", "c.g.served.Store(true)\n\tc.g.guards.Add(&c.entry)"},
	}},
	{"a node of a tree does not wait for the nodes above", []edit{
		{"lease/acquire.go", "if ahead[i].None {", "if ahead[i].None || part.shared {"},
	}},
	{"there is one slot more than permits", []edit{
		{"lease/permit.go", "free := rand.IntN(s.of)", "free := rand.IntN(s.of + 1)"},
	}},
	{"a permit is taken ahead of those who wait for one", []edit{
		{"internal/queue/slots.go", "[]clientv3.Cmp{turnstile.empty(), e.empty()}", "[]clientv3.Cmp{e.empty()}"},
	}},
	{"Unlock deletes the key before the context ends", []edit{
		{"lease/unlock.go", "\tl.end(ErrUnlocked)\n", "\tdefer l.end(ErrUnlocked)\n"},
	}},
	{"a third of the deletions of a holder's own keys is ignored", []edit{
		{"internal/queue/guard.go", "case gone, ev.Kv.ModRevision <= e.Rev:", "case gone, ev.Kv.ModRevision <= e.Rev, ev.Kv.ModRevision%3 == 0:"},
	}},
	{"a third of the deletions that a waiter waits for is ignored", []edit{
		{"internal/queue/await.go", "case ev.Kv.ModRevision <= rev:", "case ev.Kv.ModRevision <= rev, ev.Kv.ModRevision%3 == 0:"},
	}},
	{"an observer drops one event of a hundred", []edit{
		{"election/hub.go", "case rev <= h.rev:", "case rev <= h.rev || time.Now().UnixNano()/64%100 == 0:"},
	}},
}

// plant writes the changed files and returns the overlay that puts them in place.
func (b *bench) plant(t *testing.T, p plant) string {
	t.Helper()
	texts := map[string][]byte{}
	for _, e := range p.changes {
		text := texts[e.file]
		if text == nil {
			var err error
			text, err = os.ReadFile(filepath.Join(b.root, filepath.FromSlash(e.file)))
			require.NoError(t, err)
		}
		require.Equal(t, 1, bytes.Count(text, []byte(e.old)), "%s: %s must have this text once:\n%s", p.name, e.file, e.old)
		texts[e.file] = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	overlay, err := b.overlay(texts)
	require.NoError(t, err)
	return overlay
}

// Each plant compiles.
func TestMix_plantsFitTheCode(t *testing.T) {
	b := newBench(t)
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			output, err := b.command(".", b.plant(t, p), "go", "build", "./"+filepath.Dir(p.changes[0].file)).CombinedOutput()
			require.NoError(t, err, "%s", output)
		})
	}
}

// The random mix finds each planted fault: go test ./mutants -run TestMix_finds -mix PATTERN -timeout 2h.
func TestMix_findsPlants(t *testing.T) {
	if *inMix == "" {
		return
	}
	b := newBench(t)
	pattern, err := regexp.Compile(*inMix)
	require.NoError(t, err, "-mix")
	matches := func(p plant) bool { return pattern.MatchString(p.name) }
	require.True(t, slices.ContainsFunc(plants, matches), "-mix %q matches no plant", *inMix)
	for _, p := range plants {
		if !matches(p) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			began := time.Now()
			output, err := b.command("integration", b.plant(t, p), "go", "test", "-vet=off", "-timeout=0", "./safety/mix",
				"-run=^TestSafety$", "-duration=2m", "-first", "-histories="+t.TempDir()).CombinedOutput()
			_, failed := errors.AsType[*exec.ExitError](err)
			require.True(t, failed, "%v\n%s", err, output)
			found := regexp.MustCompile(`(?m)^ *I\d, round \d+: .*`).FindString(string(output))
			require.NotEmpty(t, found, "the mix has not found the plant:\n%s", output)
			t.Logf("after %v: %s", time.Since(began).Round(time.Second), found)
		})
	}
}
