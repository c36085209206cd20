package mutants_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// run runs one test with a mutant selected, and with more flags. A failed test is not an error.
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

// selector is the environment variable that selects a mutant by its name. Without it the code runs unchanged.
const selector = "LEASEFENCE_MUTANT"

// place is the place of a mutant's change, inside of the body of one function.
type place struct {
	text     []byte // of the file
	old, new string // from the change on
	at       int    // where the change begins
	file     *ast.File
	fn       *ast.FuncDecl
}

// place finds the old text.
func (m mutant) place(root string) (place, error) {
	fail := func(format string, args ...any) (place, error) {
		return place{}, fmt.Errorf("mutant %q: "+format, append([]any{m.name}, args...)...)
	}
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
	if err != nil {
		return fail("%w", err)
	}
	p := place{text: text, old: m.old(), new: m.new()}
	switch n := bytes.Count(text, []byte(p.old)); {
	case n != 1:
		return fail("its old text is %d times in %s, want once; the code has changed, so write the same fault for the present "+
			"code, see doc.go. Old text:\n%s", n, m.file, p.old)
	case p.old == p.new:
		return fail("its edit changes nothing")
	}
	same := edited.FindStringIndex(m.edit)[0] // what comes before the change
	p.at = bytes.Index(text, []byte(p.old)) + same
	p.old, p.new = p.old[same:], p.new[same:]
	if p.file, err = parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution); err != nil {
		return fail("%w", err)
	}
	for _, decl := range p.file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if ok && fn.Body != nil && p.offset(fn.Body.Lbrace) < p.at && p.at+len(p.old) < p.offset(fn.End()) {
			p.fn = fn
			return p, nil
		}
	}
	return fail("its old text is not inside of one function of %s", m.file)
}

func (p place) offset(pos token.Pos) int { return int(pos - p.file.FileStart) }

// block returns a statement that runs the function's body with the fault instead of the rest of the function, if the
// mutant is selected. The line directive makes the compiler's errors name the mutant.
func (p place) block(m mutant) string {
	begin, end := p.offset(p.fn.Body.Lbrace)+1, p.offset(p.fn.Body.Rbrace)
	last := ""
	if p.fn.Type.Results == nil {
		last = "return"
	}
	return fmt.Sprintf(" if selectedMutant == %q {\n//line mutant %q:1\n%s%s%s\n%s\n}; ",
		m.name, m.name, p.text[begin:p.at], p.new, p.text[p.at+len(p.old):end], last)
}

// schemata returns the text of each file that mutants change, with all of its mutants, so that one build serves them
// all.
func schemata(root string, mutants []mutant) (map[string][]byte, error) {
	type file struct {
		text   []byte
		blocks map[int]string // by their offsets in text
	}
	files, texts := map[string]*file{}, map[string][]byte{}
	for _, m := range mutants {
		p, err := m.place(root)
		if err != nil {
			return nil, err
		}
		f := files[m.file]
		if f == nil {
			f = &file{text: p.text, blocks: map[int]string{}}
			files[m.file] = f
		}
		begin := p.offset(p.fn.Body.Lbrace) + 1
		if strings.Contains(f.blocks[begin], strconv.Quote(m.name)) {
			return nil, fmt.Errorf("mutant %q: two edits of %s, want one that spans both", m.name, p.fn.Name)
		}
		f.blocks[begin] += p.block(m)
		texts[filepath.ToSlash(filepath.Join(filepath.Dir(m.file), "selected_mutant.go"))] = fmt.Appendf(nil,
			"package %s\n\nimport \"os\"\n\nvar selectedMutant = os.Getenv(%q)\n", p.file.Name, selector)
	}
	for name, f := range files {
		var text bytes.Buffer
		done := 0
		for _, at := range slices.Sorted(maps.Keys(f.blocks)) {
			text.Write(f.text[done:at])
			text.WriteString(f.blocks[at])
			done = at
		}
		text.Write(f.text[done:])
		texts[name] = text.Bytes()
	}
	return texts, nil
}

// overlay writes files that replace those of the tree, and their list for go build's -overlay.
func (b *bench) overlay(texts map[string][]byte) (list string, err error) {
	replace := map[string]string{}
	for name, text := range texts {
		changed := b.file("changed") + ".go"
		if err := os.WriteFile(changed, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(b.root, filepath.FromSlash(name))] = changed
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list = b.file("overlay") + ".json"
	return list, os.WriteFile(list, text, 0o600)
}

// kills returns nil if the killer's test has failed at its assertion.
func kills(k killer, root, output string) error {
	switch {
	case strings.Contains(output, "\npanic: "), strings.Contains(output, "\nfatal error: "):
		return errors.New("it has panicked or timed out: that is no kill")
	case ended(output, "PASS", k.test):
		return fmt.Errorf("the mutant lives: %s does not notice it", k.test)
	case !ended(output, "FAIL", k.test):
		return fmt.Errorf("%s has neither passed nor failed", k.test)
	}
	failed := position.FindAllString(output, -1)
	files, err := k.tests(root)
	for file, text := range files {
		for n, line := range strings.Split(text, "\n") {
			if strings.Contains(line, k.line) && slices.Contains(failed, fmt.Sprint(file, ":", n+1)) {
				return nil
			}
		}
	}
	return errors.Join(err, fmt.Errorf("another assertion has failed, want %q", k.line))
}

// ended reports whether the test has ended with a result, PASS or FAIL.
func ended(output, result, test string) bool {
	return strings.Contains(output, "--- "+result+": "+test+" (")
}

// position matches the position of a failed assertion.
var position = regexp.MustCompile(`\w+_test\.go:\d+`)
