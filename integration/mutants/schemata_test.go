package mutants_test

import (
	"bytes"
	"encoding/json"
	"errors"
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

// place is the place of a mutant's old text, inside of one function.
type place struct {
	text     []byte // of the file
	old, new string
	at       int // where the old text begins
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
	p.at = bytes.Index(text, []byte(p.old))
	if p.file, err = parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution); err != nil {
		return fail("%w", err)
	}
	for _, decl := range p.file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if ok && fn.Body != nil && p.offset(fn.Name.Pos()) <= p.at && p.at+len(p.old) <= p.offset(fn.End()) {
			p.fn = fn
			return p, nil
		}
	}
	return fail("its old text is not inside of one function of %s", m.file)
}

func (p place) offset(pos token.Pos) int { return int(pos - p.file.FileStart) }

// mutated returns a copy of the function with the fault and another name.
func (p place) mutated(name string) string {
	begin, old := p.offset(p.fn.Pos()), p.offset(p.fn.Name.Pos())
	text := string(p.text[begin:p.at]) + p.new + string(p.text[p.at+len(p.old):p.offset(p.fn.End())])
	return text[:old-begin] + name + text[old-begin+len(p.fn.Name.Name):]
}

// call returns the statement that calls the copy, instead of the rest of the function, if the mutant is selected.
func (p place) call(m mutant, name string) (string, error) {
	names := func(fields *ast.FieldList) (all []string, err error) {
		if fields == nil {
			return nil, nil
		}
		for _, field := range fields.List {
			variadic := ""
			if _, ok := field.Type.(*ast.Ellipsis); ok {
				variadic = "..."
			}
			if len(field.Names) == 0 {
				err = errors.New("no name")
			}
			for _, name := range field.Names {
				if name.Name == "_" {
					err = errors.New("no name")
				}
				all = append(all, name.Name+variadic)
			}
		}
		return all, err
	}
	receiver, err1 := names(p.fn.Recv)
	types, err2 := names(p.fn.Type.TypeParams)
	params, err3 := names(p.fn.Type.Params)
	if err1 != nil || err2 != nil || err3 != nil {
		return "", fmt.Errorf("mutant %q: a parameter of %s has no name, so it cannot be passed on", m.name, p.fn.Name)
	}
	if len(types) > 0 {
		name += "[" + strings.Join(types, ", ") + "]"
	}
	call := strings.Join(append(receiver, name), ".") + "(" + strings.Join(params, ", ") + ")"
	if p.fn.Type.Results == nil {
		return fmt.Sprintf(" if selectedMutant == %q { %s; return }; ", m.name, call), nil
	}
	return fmt.Sprintf(" if selectedMutant == %q { return %s }; ", m.name, call), nil
}

// schemata returns the text of each file that mutants change, with all of its mutants, so that one build serves them
// all: the mutated copies of functions, and the calls of these copies.
func schemata(root string, mutants []mutant) (map[string][]byte, error) {
	type file struct {
		text   []byte
		calls  map[int]string // by their offsets in text
		copies strings.Builder
	}
	files, texts := map[string]*file{}, map[string][]byte{}
	for i, m := range mutants {
		p, err := m.place(root)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("mutant%d%s", i, p.fn.Name)
		call, err := p.call(m, name)
		if err != nil {
			return nil, err
		}
		f := files[m.file]
		if f == nil {
			f = &file{text: p.text, calls: map[int]string{}}
			files[m.file] = f
		}
		begin := p.offset(p.fn.Body.Lbrace) + 1
		if strings.Contains(f.calls[begin], strconv.Quote(m.name)) {
			return nil, fmt.Errorf("mutant %q: two edits of %s, want one that spans both", m.name, p.fn.Name)
		}
		f.calls[begin] += call
		// The line directive makes the compiler's errors name the mutant.
		fmt.Fprintf(&f.copies, "\n//line mutant %q:1\n%s\n", m.name, p.mutated(name))
		texts[filepath.ToSlash(filepath.Join(filepath.Dir(m.file), "selected_mutant.go"))] = fmt.Appendf(nil,
			"package %s\n\nimport \"os\"\n\nvar selectedMutant = os.Getenv(%q)\n", p.file.Name, selector)
	}
	for name, f := range files {
		var text bytes.Buffer
		done := 0
		for _, at := range slices.Sorted(maps.Keys(f.calls)) {
			text.Write(f.text[done:at])
			text.WriteString(f.calls[at])
			done = at
		}
		text.Write(f.text[done:])
		text.WriteString(f.copies.String())
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
