//go:build unix

package main

import (
	"os"
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
	exampletest.RequireInOrder(t, text,
		`ledger  refuses tokens below 2 from now on$`,
		`ledger  accepts A's #1 \(\+100, balance 100\) with token 2$`,
		`main    kill -STOP A$`,
		`^B takes over`,
		`ledger  refuses tokens below 3 from now on$`,
		`ledger  accepts B's #2 \(\+10, balance 110\) with token 3$`,
		`main    kill -CONT A$`,
		`ledger  REFUSES A's #2 \(\+50, balance 150\): token 2 is stale, 3 was seen$`,
		`^The ledger\n    #1 \(\+100, balance 100\) by A\n    #2 \(\+10, balance 110\) by B\n    #3 \(\+20, balance 130\) by B\n\n`,
		`^The late write was refused`,
	)
	exampletest.RequireInOrder(t, text, ` A +INFO has the lock token=2$`, ` A +WARN is refused`, ` A +WARN lock is lost .*no renewal was acknowledged`)
	exampletest.RequireInOrder(t, text, ` B +INFO has the lock token=3$`, ` B +INFO unlocks$`)
}

// The same run without the check of tokens: the stale write is accepted, so in the first test it was the fence that
// refused it.
func TestQuickstart_corruptsWithoutFence(t *testing.T) {
	t.Parallel()
	status, text := exampletest.Run(t, nil, "-no-fence")
	require.Equal(t, 1, status)
	exampletest.RequireInOrder(t, text,
		`ledger  accepts B's #2 \(\+10, balance 110\) with token 3$`,
		`ledger  ACCEPTS A's #2 \(\+50, balance 150\) with the stale token 2: it does not check tokens$`,
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
