package security_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	repository = "../../.."
	golden     = "testdata/logged.golden"
)

// logging are the packages that write to a log.
var logging = []string{"lease", "election", "internal", "fence"}

// The golden list has all that the code can log: levels, messages and the names of attributes. Before you add a line,
// check that its attributes contain no secrets: see SECURITY.md.
func TestLog_isWhatTheGoldenListSays(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, strings.Split(strings.TrimSpace(string(want)), "\n"), loggedInSource(t), "check that no secrets are logged, and then change %s", golden)
}

// loggedInSource finds the calls of a slog.Logger's methods.
func loggedInSource(t *testing.T) []string {
	t.Helper()
	lines := []string{}
	for _, dir := range logging {
		err := filepath.WalkDir(filepath.Join(repository, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && entry.Name() == "integration":
				return filepath.SkipDir
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if line := logLine(call); line != "" {
						lines = append(lines, line)
					}
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// logLine returns a call's entry in the golden list, or "" if the call logs nothing.
func logLine(call *ast.CallExpr) string {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 || !isLogger(method.X) {
		return ""
	}
	name := method.Sel.Name
	switch name {
	case "With":
		return "With " + keys(call.Args)
	case "Debug", "Info", "Warn", "Error":
		return fmt.Sprintf("%s %s %s", strings.ToUpper(name), text(call.Args[0]), keys(call.Args[1:]))
	case "Log", "LogAttrs", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "WithGroup":
		return name + ", which this test cannot read yet"
	}
	return "" // a method of another kind of log
}

// isLogger reports whether an expression is a logger, by its name.
func isLogger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "log" || x.Name == "logger"
	case *ast.SelectorExpr:
		return x.Sel.Name == "log" || x.Sel.Name == "Logger"
	case *ast.CallExpr:
		fun, ok := x.Fun.(*ast.SelectorExpr)
		return ok && fun.Sel.Name == "Logger"
	}
	return false
}

// keys returns the names of attributes, which are every other argument.
func keys(args []ast.Expr) string {
	names := []string{}
	for i := 0; i < len(args); i += 2 {
		names = append(names, text(args[i]))
	}
	return fmt.Sprint(names)
}

func text(x ast.Expr) string {
	if lit, ok := x.(*ast.BasicLit); ok {
		if s, err := strconv.Unquote(lit.Value); err == nil {
			return s
		}
	}
	return fmt.Sprintf("(%T)", x)
}
