package mutants_test

import (
	"bytes"
	"context"
	"encoding/json"
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

// change is the text of the mutant's file with the fault in it.
func (m mutant) change(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
	if err != nil {
		return nil, err
	}
	switch n := bytes.Count(text, []byte(m.old)); {
	case n != 1:
		return nil, fmt.Errorf("mutant %q: its old text is %d times in %s, want once; the code has changed, so write the "+
			"mutant anew for the same fault, see the package's page. Old text:\n%s", m.name, n, m.file, m.old)
	case m.old == m.new:
		return nil, fmt.Errorf("mutant %q: old and new text are the same, want a fault", m.name)
	}
	return bytes.Replace(text, []byte(m.old), []byte(m.new), 1), nil
}

// bench builds and runs test binaries.
type bench struct {
	ctx        context.Context //nolint:containedctx // the test's
	root, temp string

	mu   sync.Mutex // guards the fields below
	n    int        // names what is made
	once map[killer]func() (string, error)
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{
		ctx: t.Context(), root: repository(t), temp: t.TempDir(),
		once: make(map[killer]func() (string, error)),
	}
}

// asItIs is the output of the killer's test on the code as it is. Each package is built once, each test runs once.
func (b *bench) asItIs(k killer) (output string, err error) {
	build := b.shared(killer{dir: k.dir}, func() (string, error) {
		binary := b.file("as-it-is")
		return binary, b.build(k.dir, binary, "")
	})
	return b.shared(killer{dir: k.dir, test: k.test}, func() (string, error) {
		binary, err := build()
		if err != nil {
			return "", err
		}
		return b.run(k, binary, "")
	})()
}

// shared is do's result, which is done at most once for each key.
func (b *bench) shared(key killer, do func() (string, error)) func() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.once[key] == nil {
		b.once[key] = sync.OnceValues(do)
	}
	return b.once[key]
}

// mutated is the output of the killer's test on the mutant.
func (b *bench) mutated(m mutant) (output string, err error) {
	text, err := m.change(b.root)
	if err != nil {
		return "", err
	}
	changed, binary, overlay := b.file("changed")+".go", b.file("mutant"), b.file("overlay")+".json"
	defer func() { _ = os.Remove(binary) }() // some 20 MB each
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	replace := map[string]map[string]string{"Replace": {filepath.Join(b.root, filepath.FromSlash(m.file)): changed}}
	list, err := json.Marshal(replace)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		return "", err
	}
	if err := b.build(m.by.dir, binary, overlay); err != nil {
		return "", err
	}
	return b.run(m.by, binary, overlay)
}

// file is a path that nobody else is given.
func (b *bench) file(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	return filepath.Join(b.temp, name+"-"+strconv.Itoa(b.n))
}

// build makes a test binary: without the tables of symbols, which no test reads, so that it is linked sooner.
func (b *bench) build(dir, binary, overlay string) error {
	cmd := b.command(dir, overlay, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, ".")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", dir, err, output)
	}
	return nil
}

// run runs one test. That it fails is no error here.
func (b *bench) run(k killer, binary, overlay string) (output string, err error) {
	parts := strings.Split(k.test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	cmd := b.command(k.dir, overlay, binary, "-test.v", "-test.count=1", "-test.timeout=2m", "-test.run="+strings.Join(parts, "/"))
	text, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); failed {
		err = nil
	}
	return string(text), err
}

// command runs in a package's folder. The overlay is in the environment, so that a test which builds a program builds
// the mutant's.
func (b *bench) command(dir, overlay, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.ctx, name, args...)
	cmd.Dir = filepath.Join(b.root, filepath.FromSlash(dir))
	if overlay != "" {
		cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	}
	return cmd
}
