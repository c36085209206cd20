package mutants_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

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
