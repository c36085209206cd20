//go:build unix

package command_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/rig"
)

// Each verdict, in words.
func TestExplain_verdicts(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	_, unlock := stage(t, client) // 2 holds, 4 waits, 3 holds a permit
	_, err := client.Put(rig.Bounded(t), "data", "")
	require.NoError(t, err)
	run := func(args ...string) string {
		p := start(t, addr, append([]string{"explain"}, args...)...)
		code := p.end(t)
		require.Zero(t, code)
		verdict := start(t, addr, append([]string{"explain", "-o", "json"}, args...)...)
		require.Zero(t, verdict.end(t))
		_, after, _ := strings.Cut(verdict.stdout.String(), `"verdict":"`)
		word, _, _ := strings.Cut(after, `"`)
		return "$ leasefence explain " + strings.Join(args, " ") + "\n" + normal(p.stdout.String()) + "verdict: " + word + "\n"
	}
	var all []string
	for _, args := range [][]string{{"2"}, {"4"}, {"3"}, {"5"}, {"1000"}, {"281474976710658"}, {"2", "jobs/"}, {"2", "other/"}} {
		all = append(all, run(args...))
	}
	set := lock(t, addr, "--owner", "host-c/3", "--all", "set/c", "set/a", "set/b", "--", "cat")
	rig.AwaitQueue(t, client, "set", 3)
	all = append(all, run("6"))
	require.Zero(t, set.end(t))
	unlock()
	etcds := contend(t, client, 3600, "job/", "", "") // a key of etcd's own packages, which have no owner
	nine := fmt.Sprint(etcds.rev)
	all = append(all, "Now it is unlocked.\n", run("2"), run("281474976710658"), run(nine))
	etcds.leave(t, client, false)
	all = append(all, run(nine))
	resp, err := client.Get(rig.Bounded(t), "x")
	require.NoError(t, err)
	_, err = client.Compact(rig.Bounded(t), resp.Header.Revision)
	require.NoError(t, err)
	all = append(all, "Now etcd has compacted its history.\n", run("2"), run("4"))
	requireGolden(t, "explain.golden", strings.Join(all, "\n"))
}
