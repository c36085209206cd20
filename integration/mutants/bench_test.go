package mutants_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutant is a fault and what notices it. Paths are below the repository, with slashes.
type mutant struct {
	name string
	file string // that is changed
	old  string // stands in it exactly once
	new  string // stands there instead
	by   killer
}

// killer is an assertion of a test.
type killer struct {
	dir  string // of the package
	test string // the test's name, or a subtest's as go test prints it
	line string // a part of the source line of the assertion that fails
}

// repository is the root of the working tree.
func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, ".golangci.yml"), "this is not the repository's root")
	return root
}

// stands is nil if the package's tests have the killer's test and its assertion.
func (k killer) stands(root string) error {
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(k.dir), "*_test.go"))
	if err != nil {
		return err
	}
	var tests []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		tests = append(tests, text...)
	}
	test, _, _ := strings.Cut(k.test, "/")
	for _, text := range []string{"func " + test + "(", k.line} {
		if !bytes.Contains(tests, []byte(text)) {
			return fmt.Errorf("%q is not in the tests of %s; they have changed, so name the assertion that notices the "+
				"mutant now, and run it", text, k.dir)
		}
	}
	return nil
}

// bench builds test binaries that have all its mutants in them, and runs them.
type bench struct {
	ctx        context.Context //nolint:containedctx // the test's
	root, temp string
	mutants    []mutant

	mu   sync.Mutex // guards the fields below
	n    int        // names what is made
	once map[killer]func() (string, error)
}

func newBench(t *testing.T, mutants ...mutant) *bench {
	t.Helper()
	return &bench{
		ctx: t.Context(), root: repository(t), temp: t.TempDir(), mutants: mutants,
		once: make(map[killer]func() (string, error)),
	}
}

// asItIs is the output of the killer's test with no mutant selected. Each test runs once so.
func (b *bench) asItIs(k killer) (output string, err error) {
	return b.shared(killer{dir: k.dir, test: k.test}, func() (string, error) { return b.run(k, "") })()
}

// mutated is the output of the killer's test on the mutant.
func (b *bench) mutated(m mutant) (output string, err error) { return b.run(m.by, m.name) }

// shared is do's result, which is done at most once for each key.
func (b *bench) shared(key killer, do func() (string, error)) func() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.once[key] == nil {
		b.once[key] = sync.OnceValues(do)
	}
	return b.once[key]
}

// schemata is the overlay with the mutants. It is written once.
func (b *bench) schemata() (overlay string, err error) {
	return b.shared(killer{}, func() (string, error) {
		texts, err := schemata(b.root, b.mutants)
		if err != nil {
			return "", err
		}
		return b.overlay(texts)
	})()
}

// build is the test binary of a package. Each package is built once, and without the tables of symbols, which no test
// reads, so that it is linked sooner.
func (b *bench) build(dir, overlay string) (binary string, err error) {
	return b.shared(killer{dir: dir}, func() (string, error) {
		binary := b.file("tests")
		cmd := b.command(dir, overlay, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, ".")
		if output, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the tests of %s: %w\n%s", dir, err, output)
		}
		return binary, nil
	})()
}

// file is a path that nobody else is given.
func (b *bench) file(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	return filepath.Join(b.temp, name+"-"+strconv.Itoa(b.n))
}

// run runs one test on a mutant, or on the code as it is if the mutant has no name. That the test fails is no error here.
func (b *bench) run(k killer, mutant string) (output string, err error) {
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
	cmd := b.command(k.dir, overlay, binary, "-test.v", "-test.count=1", "-test.timeout=2m", "-test.run="+strings.Join(parts, "/"))
	cmd.Env = append(cmd.Env, selector+"="+mutant)
	text, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); failed {
		err = nil
	}
	return string(text), err
}

// command runs in a package's folder. The overlay is in the environment, so that a test which builds a program builds
// the mutants' too.
func (b *bench) command(dir, overlay, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.ctx, name, args...)
	cmd.Dir = filepath.Join(b.root, filepath.FromSlash(dir))
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	return cmd
}
