package mutants_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutant is a fault and its killer. Paths are relative to the repository's root, with slashes.
type mutant struct {
	name string
	file string // the file that is changed
	edit string // a place that is in file exactly once, with [-what is taken out-] and {+what is put in+}, as git's word diff shows it
	by   killer
}

var edited = regexp.MustCompile(`(?s)\[-(.*?)-\]|\{\+(.*?)\+\}`)

// old and new return the text of the place before and after the edit.
func (m mutant) old() string { return edited.ReplaceAllString(m.edit, "$1") }
func (m mutant) new() string { return edited.ReplaceAllString(m.edit, "$2") }

// table has mutants by the files that they change, and by their names.
type table map[string]map[string]struct {
	edit string
	by   killer
}

func (t table) mutants() (all []mutant) {
	for _, file := range slices.Sorted(maps.Keys(t)) {
		for _, name := range slices.Sorted(maps.Keys(t[file])) {
			all = append(all, mutant{name, file, t[file][name].edit, t[file][name].by})
		}
	}
	return all
}

// killer is an assertion of a test.
type killer struct {
	dir  string // of the package
	test string // the test's name, or a subtest's as go test prints it
	line string // a part of the source line of the assertion that fails
}

// repository returns the root of the working tree.
func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, ".golangci.yml"), "this is not the repository's root")
	return root
}

// tests returns the package's test files, by their names.
func (k killer) tests(root string) (files map[string]string, err error) {
	paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(k.dir), "*_test.go"))
	files = map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[filepath.Base(path)] = string(text)
	}
	return files, err
}

// stands returns nil if the killer's test and its assertion are in the package's tests.
func (k killer) stands(root string) error {
	files, err := k.tests(root)
	test, _, _ := strings.Cut(k.test, "/")
	for _, text := range []string{"func " + test + "(", k.line} {
		if err == nil && !strings.Contains(strings.Join(slices.Collect(maps.Values(files)), ""), text) {
			err = fmt.Errorf("%q is not in the tests of %s; they have changed, so name the assertion that notices the "+
				"fault now, and run it", text, k.dir)
		}
	}
	return err
}

// bench builds and runs test binaries that contain all its mutants.
type bench struct {
	ctx        context.Context //nolint:containedctx // the test's
	root, temp string
	mutants    []mutant
	files      atomic.Int64 // makes names of files unique

	mu   sync.Mutex // guards once
	once map[killer]func() (string, error)
}

func newBench(t *testing.T, mutants ...mutant) *bench {
	t.Helper()
	return &bench{
		ctx: t.Context(), root: repository(t), temp: t.TempDir(), mutants: mutants,
		once: make(map[killer]func() (string, error)),
	}
}

// unchanged returns the output of the killer's test with no mutant selected. It runs each test only once.
func (b *bench) unchanged(k killer) (output string, err error) {
	return b.shared(killer{dir: k.dir, test: k.test}, func() (string, error) { return b.run(k, "") })()
}

// mutated returns the output of the killer's test with the mutant selected.
func (b *bench) mutated(m mutant) (output string, err error) { return b.run(m.by, m.name) }

// shared returns a function that returns do's results. Do is called at most once for each key.
func (b *bench) shared(key killer, do func() (string, error)) func() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.once[key] == nil {
		b.once[key] = sync.OnceValues(do)
	}
	return b.once[key]
}

// schemata returns the overlay with the mutants, which it writes once.
func (b *bench) schemata() (overlay string, err error) {
	return b.shared(killer{}, func() (string, error) {
		texts, err := schemata(b.root, b.mutants)
		if err != nil {
			return "", err
		}
		return b.overlay(texts)
	})()
}

// heavy are packages with many dependencies, which the tests have compiled with the flags of GOFLAGS.
var heavy = []string{inK8slock, inRedis, inS3fence, onSQLite, byMix.dir}

// build returns the test binary of a package, which it builds once. It leaves out the symbol tables, which no test
// reads, so that linking is faster.
func (b *bench) build(dir, overlay string) (binary string, err error) {
	return b.shared(killer{dir: dir}, func() (string, error) {
		binary := b.file("tests")
		args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}
		if !slices.Contains(heavy, dir) { // the race detector would make many mutants slow
			args = append(args, "-race=false")
		}
		cmd := b.command(dir, overlay, "go", args...)
		if output, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the tests of %s: %w\n%s", dir, err, output)
		}
		return binary, nil
	})()
}

// file returns an unused path.
func (b *bench) file(name string) string {
	return filepath.Join(b.temp, fmt.Sprint(name, "-", b.files.Add(1)))
}

// run runs one test with a mutant selected, or with none if the name is empty, and with more flags. A failed test is not an
// error.
func (b *bench) run(k killer, mutant string, args ...string) (output string, err error) {
	overlay, err := b.schemata()
	if err != nil {
		return "", err
	}
	binary, err := b.build(k.dir, overlay)
	if err != nil {
		return "", err
	}
	parts := strings.Split(k.test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	args = append([]string{"-test.v", "-test.count=1", "-test.timeout=2m", "-test.run=" + strings.Join(parts, "/")}, args...)
	cmd := b.command(k.dir, overlay, binary, args...)
	cmd.Env = append(cmd.Env, selector+"="+mutant)
	text, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); failed {
		err = nil
	}
	return string(text), err
}

// command returns a command that runs in a package's folder. The overlay is in the environment, so that a test which
// builds a program builds it with the mutants.
func (b *bench) command(dir, overlay, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.ctx, name, args...)
	cmd.Dir = filepath.Join(b.root, filepath.FromSlash(dir))
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	return cmd
}
