package mutants_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

var mutants = slices.Concat(fenceMutants, leaseMutants, queueMutants, electionMutants)

// A mutant whose old text is gone would be no fault at all.
func TestMutants_fitTheCode(t *testing.T) {
	root := repository(t)
	names := make(map[string]bool)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			require.False(t, names[m.name], "another mutant has this name")
			names[m.name] = true
			_, err := m.change(root)
			require.NoError(t, err)
		})
	}
}

// Each mutant is noticed by its test, which passes on the code as it is.
func TestMutants_die(t *testing.T) {
	b := newBench(t)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			output, err := b.asItIs(m.by)
			require.NoError(t, err, "%s", output)
			require.NoError(t, passes(m.by, output), "%s", output)

			output, err = b.mutated(m)
			require.NoError(t, err, "%s", output)
			require.NoError(t, kills(m.by, b.root, output), "%s", output)
		})
	}
}

// What changes nothing lives, and what does not compile is not taken for dead.
func TestMutants_whatIsNoKill(t *testing.T) {
	b := newBench(t)
	by := killer{"fence", "TestGuard_refusesBelowTheMark", "require.ErrorIs(t, err, fence.ErrStale)"}

	output, err := b.mutated(mutant{"harmless", "fence/guard.go", "package fence\n", "package fence // as ever\n", by})
	require.NoError(t, err, "%s", output)
	require.EqualError(t, kills(by, b.root, output), "the mutant lives: TestGuard_refusesBelowTheMark does not notice it")

	output, err = b.mutated(mutant{"broken", "fence/guard.go", "package fence\n", "package fence\n\nvar x int = nil\n", by})
	require.ErrorContains(t, err, "build the tests of fence", "%s", output)

	_, err = b.mutated(mutant{"gone", "fence/guard.go", "no such text", "", by})
	require.ErrorContains(t, err, "its old text is 0 times in fence/guard.go, want once")
}

func TestKills_onlyByItsAssertion(t *testing.T) {
	root := repository(t)
	const file = "fence/guard_test.go"
	line := lineOf(t, root, file, "require.PanicsWithValue(")
	by := killer{"fence", "TestX", "require.PanicsWithValue("}
	for output, want := range map[string]string{
		"--- FAIL: TestX (0.00s)\n    guard_test.go:" + line + ": \n        \tError Trace:\t" + file + "\nFAIL\n": "",
		"--- FAIL: TestX (0.00s)\n    guard_test.go:1: \nFAIL\n":                                                  `another assertion has failed`,
		"--- FAIL: TestXY (0.00s)\n    guard_test.go:" + line + ": \nFAIL\n":                                      `TestX has neither passed nor failed`,
		"--- FAIL: TestX (0.00s)\n    guard_test.go:" + line + ": \npanic: oh\n":                                  `it has panicked`,
		"--- PASS: TestX (0.00s)\nPASS\n":                                                                         `the mutant lives`,
		"--- SKIP: TestX (0.00s)\nPASS\n":                                                                         `TestX has neither passed nor failed`,
	} {
		err := kills(by, root, output)
		if want == "" {
			require.NoError(t, err, "%s", output)
			continue
		}
		require.ErrorContains(t, err, want, "%s", output)
	}
}
