package mutants_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

var mutants = slices.Concat(
	fenceMutants.mutants(), leaseMutants.mutants(), queueMutants.mutants(), electionMutants.mutants(), fakeMutants.mutants(),
)

// The old text of each mutant is in the code, and its killer is in the tests.
func TestMutants_fitTheCode(t *testing.T) {
	root := repository(t)
	names := make(map[string]bool)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			require.False(t, names[m.name], "another mutant has this name")
			names[m.name] = true
			_, err := m.place(root)
			require.NoError(t, err)
			require.NoError(t, m.by.stands(root))
		})
	}
	for _, p := range plants { // they share a build with the mutants
		require.False(t, names[p.name], "the plant %q has the name of a mutant", p.name)
	}
}

// Each mutant that docs/guarantees.md names is in the tables.
func TestMutants_namedInTheGuarantees(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository(t), "docs", "guarantees.md"))
	require.NoError(t, err)
	clauses := regexp.MustCompile(`mutants? "[^|]*`).FindAllString(string(text), -1)
	require.NotEmpty(t, clauses)
	for _, clause := range clauses {
		for _, quoted := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(clause, -1) {
			named := func(m mutant) bool { return strings.Contains(m.name, quoted[1]) }
			require.True(t, slices.ContainsFunc(mutants, named), "docs/guarantees.md names the mutant %q, which does not exist", quoted[1])
		}
	}
}

// Each mutant is killed by its killer, which passes on the unchanged code among the tests of its package.
func TestMutants_die(t *testing.T) {
	b := newBench(t, slices.Concat(mutants, plants)...) // the plants only have to compile
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			output, err := b.run(m.by, m.name)
			require.NoError(t, err, "%s", output)
			require.NoError(t, kills(m.by, b.root, output), "%s", output)
		})
	}
}

// A change that does not compile, or is not inside of one function, is an error and no kill.
func TestMutants_whatIsNoKill(t *testing.T) {
	t.Parallel()
	try := func(edit string) error {
		m := mutant{"tried", "fence/mark.go", edit, killer{dir: "fence", test: "TestGuard_rules"}}
		_, err := newBench(t, m).run(m.by, m.name)
		return err
	}
	err := try("case b.Token < [-m.write-]{+nil+}:")
	require.ErrorContains(t, err, "build the tests of fence")
	require.ErrorContains(t, err, `mutant "tried":`)
	require.ErrorContains(t, try("[-no such text-]"), "its old text is 0 times in fence/mark.go, want once")
	require.ErrorContains(t, try("package [-fence-]{+gate+}"), "its old text is not inside of one function of fence/mark.go")
}

func TestKills_onlyByItsAssertion(t *testing.T) {
	root := repository(t)
	const file = "fence/guard_test.go"
	by := killer{"fence", "TestX", "require.PanicsWithValue("}
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	require.NoError(t, err)
	before, _, found := strings.Cut(string(text), by.line)
	require.True(t, found)
	line := strconv.Itoa(1 + strings.Count(before, "\n"))
	for output, want := range map[string]string{
		"--- FAIL: TestX (0.00s)\n    guard_test.go:" + line + ": \n        \tError Trace:\t" + file + "\nFAIL\n": "",
		"--- FAIL: TestX (0.00s)\n    guard_test.go:1: \nFAIL\n":                                                  `another assertion has failed`,
		"--- FAIL: TestXY (0.00s)\n    guard_test.go:" + line + ": \nFAIL\n":                                      `TestX has neither passed nor failed`,
		"--- FAIL: TestX (0.00s)\n    guard_test.go:" + line + ": \npanic: oh\n":                                  `it has panicked or timed out`,
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
