//go:build unix

package main

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
)

// The tests of the demo do not run in parallel: its leases of two seconds need a machine that is not too busy.
func TestDemo_movesTheLead(t *testing.T) {
	r := exampletest.Start(t)
	require.Zero(t, r.End(t))
	require.Empty(t, r.Stderr.String())
	text := r.Text.String()

	led := timelineOf(t, text, "leads$")
	var ids, tokens []string
	for _, l := range led {
		ids, tokens = append(ids, l.id), append(tokens, strconv.Itoa(l.token))
	}
	require.Equal(t, []string{"A", "B", "C", "B", "A"}, ids)
	agreed := func(leader, token string, all ...string) []string {
		var lines []string
		for _, id := range all {
			lines = append(lines, fmt.Sprintf(` %s \d+ .*GET /leader: 200 \{"leader":"%s","token":"%s","me":%v\}$`, id, leader, token, id == leader))
		}
		return append(lines, ` `+leader+` \d+ .*GET /healthz: 200 ok$`)
	}
	const (
		gather   = `^Three processes start$`
		crash    = `^The leader dies`
		pause    = `^The leader is paused`
		transfer = `^The leader hands over`
		stop     = `^The leader is told to stop`
		end      = `^All stop$`
	)
	kill := func(name string, l line) string { return `main .*kill -` + name + ` ` + strconv.Itoa(l.pid) + `$` }
	// The lines of one process have an order, and so have lines that the demo waits for before its next step.
	for _, chain := range [][]string{
		append([]string{gather, `ledger +` + tokens[0] + `  accepts A's #1 \(\+1, balance 1\)$`}, agreed("A", tokens[0], "A", "B", "C")...),
		append([]string{
			crash, kill("KILL", led[0]), ` B \d+ +` + tokens[1] + `  leads$`, `main +` + tokens[1] + `  B leads \S+ after A was killed$`,
		}, agreed("B", tokens[1], "A", "B", "C")...),
		append([]string{
			pause, kill("STOP", led[1]), ` B \d+ .*is stopped$`, ` B \d+ .*GET /healthz: no answer$`,
			` C \d+ +` + tokens[2] + `  leads$`, `main +` + tokens[2] + `  C leads \S+ after B was stopped$`, kill("CONT", led[1]),
			`ledger +` + tokens[1] + `  REFUSES B's #\d+ .*` + tokens[1] + ` is older than ` + tokens[2] + `$`,
			` B \d+ +` + tokens[1] + `  is refused as stale: fence: stale token .*; leadership: lease: lost: no renewal was acknowledged before the deadline`,
			` B \d+ +` + tokens[1] + `  leads no more: lease: lost: `,
			` B \d+ .*has lost the lead: lease: lost: `,
		}, agreed("C", tokens[2], "A", "B", "C")...),
		{pause, ` B \d+ .*is stopped$`, `ledger +` + tokens[2] + `  accepts C's #\d+ `, kill("CONT", led[1])},
		append([]string{transfer, `main +` + tokens[3] + `  B leads \S+ after C was asked$`}, agreed("B", tokens[3], "A", "B", "C")...),
		{transfer, ` C \d+ +` + tokens[2] + `  is asked to transfer; to: B$`, ` C \d+ .*POST /transfer\?to=B: 200 ok$`, stop},
		append([]string{stop, kill("TERM", led[3]), `main +` + tokens[4] + `  A leads \S+ after B was told to stop$`}, agreed("A", tokens[4], "A", "C")...),
		{stop, kill("TERM", led[3]), ` B ` + strconv.Itoa(led[3].pid) + ` .*has ended: exit status 0$`, end},
		{end, ` C \d+ .*has ended: exit status 0$`, ` A \d+ .*has ended: exit status 0$`, `^The holders$`},
		{
			`^The checks$`, `^    ok      never two holders`, `^    ok      no stale write accepted: 1 sent, all refused$`,
			`^    ok      the ledger is intact`,
		},
	} {
		exampletest.RequireInOrder(t, text, chain...)
	}
	for _, token := range tokens {
		exampletest.RequireInOrder(t, text, `ledger +`+token+`  is claimed: refuses tokens below `+token+` from now on$`, `ledger +`+token+`  accepts `)
	}
	require.NotContains(t, text, "FAILED")
	requireNoneLeft(t, text, 4)
	requireTimes(t, text, led)
}

// requireTimes checks the printed times: a leader that hands over or stops has stopped to lead before the next process
// leads, and the next process leads soon.
func requireTimes(t *testing.T, text string, led []line) {
	t.Helper()
	asked := timelineOf(t, text, `is asked to transfer`)
	require.Len(t, asked, 1)
	told := timelineOf(t, text, `kill -TERM `+strconv.Itoa(led[3].pid))
	require.Len(t, told, 1)
	began := map[int]int{3: asked[0].millis, 4: told[0].millis}
	for i, l := range led[1:] {
		require.Greater(t, l.token, led[i].token)
		for _, end := range timelineOf(t, text, "leads no more") {
			if n := i + 1; end.token == led[i].token && n >= 3 {
				require.LessOrEqual(t, end.millis, l.millis, "%s led before %s had stopped", l.id, end.id)
				require.Less(t, l.millis-began[n], 1500, "%s waited until the lease expired", l.id)
				delete(began, n)
			}
		}
	}
	require.Empty(t, began, "a process has not logged that it leads no more")
}

// The same scenes without the check of tokens: a stale write is accepted, so in the first test it was the fence that
// refused it.
func TestDemo_failsWithoutFence(t *testing.T) {
	r := exampletest.Start(t, "-no-fence")
	require.Equal(t, 1, r.End(t))
	require.Contains(t, r.Stderr.String(), "a check has failed")
	exampletest.RequireInOrder(t, r.Text.String(),
		`ledger .*does NOT check tokens`,
		`main .*kill -CONT`,
		`ledger .*ACCEPTS B's #\d+ .*: it does not check the token$`,
		`^    ok      never two holders`,
		`^    FAILED  B's #\d+ .* was accepted after a larger token$`,
		`^    FAILED  .*without having seen`,
	)
	requireNoneLeft(t, r.Text.String(), 4)
}
