//go:build unix

package main

import (
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Lines of different processes may interleave in any order. These are the ledger's and the main process's.
func TestQuickstart_refusesTheStaleWrite(t *testing.T) {
	t.Parallel()
	status, text := exampletest.Run(t, nil)
	require.Zero(t, status)
	a, b := token(t, text, "A"), token(t, text, "B")
	exampletest.RequireInOrder(t, text,
		`ledger  refuses tokens below `+a+` from now on$`,
		`ledger  accepts A's #1 \(\+100, balance 100\) with token `+a+`$`,
		`main    kill -STOP A$`,
		`^B takes over`,
		`ledger  refuses tokens below `+b+` from now on$`,
		`ledger  accepts B's #2 \(\+10, balance 110\) with token `+b+`$`,
		`main    kill -CONT A$`,
		`ledger  REFUSES A's #2 \(\+50, balance 150\): token `+a+` is stale, `+b+` was seen$`,
		`^The ledger\n    #1 \(\+100, balance 100\) by A\n    #2 \(\+10, balance 110\) by B\n    #3 \(\+20, balance 130\) by B\n\n`,
		`^The late write was refused`,
	)
	exampletest.RequireInOrder(t, text, ` A +INFO has the lock `, ` A +WARN is refused`, ` A +WARN lock is lost .*no renewal was acknowledged`)
	exampletest.RequireInOrder(t, text, ` B +INFO has the lock `, ` B +INFO unlocks$`)
}

// token returns the token of a worker's lock: 2 for A and 3 for B, unless the machine stalls for so long that a lease
// expires before its worker has the lock.
func token(t *testing.T, text, worker string) string {
	t.Helper()
	found := regexp.MustCompile(` ` + worker + ` +INFO has the lock token=(\d+)\n`).FindStringSubmatch(text)
	require.NotNil(t, found)
	return found[1]
}

// The same run without the check of tokens: the stale write is accepted, so in the first test it was the fence that
// refused it.
func TestQuickstart_corruptsWithoutFence(t *testing.T) {
	t.Parallel()
	status, text := exampletest.Run(t, nil, "-no-fence")
	require.Equal(t, 1, status)
	exampletest.RequireInOrder(t, text,
		`ledger  accepts B's #2 \(\+10, balance 110\) with token `+token(t, text, "B")+`$`,
		`ledger  ACCEPTS A's #2 \(\+50, balance 150\) with the stale token `+token(t, text, "A")+`: it does not check tokens$`,
		`^quickstart: the ledger is corrupt: A wrote #2 .* without having seen B's #2 `,
	)
}

// Ctrl-C while A is stopped leaves no process, not even the stopped one, and no folder.
func TestQuickstart_cleansUpWhenInterrupted(t *testing.T) {
	t.Parallel()
	status, text := exampletest.Run(t, func(line string, program *os.Process) {
		if line == "B takes over when A's lease has expired" {
			require.NoError(t, program.Signal(syscall.SIGINT))
		}
	})
	require.Equal(t, 1, status)
	require.Regexp(t, `quickstart: failed in the scene "B takes over .*interrupt`, text)
	require.NotContains(t, text, "REFUSES")
}
