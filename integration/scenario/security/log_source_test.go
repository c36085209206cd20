package security_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// logCall is the beginning of a call of a [slog.Logger], which is known by its name, callEnd is the end of a call, and
// attribute is the name of an attribute among its arguments.
var (
	logCall   = regexp.MustCompile(`\b(?:log|[lL]ogger|Logger\([^()]*\))\.(With|WithGroup|Debug|Info|Warn|Error|\w+Context|Log|LogAttrs)\(`)
	callEnd   = regexp.MustCompile(`\)[ ,}]*\n`)
	attribute = regexp.MustCompile(`,\s*"(\w+)",`)
)

func loggedInSource(t *testing.T) []string {
	t.Helper()
	lines := []string{}
	for _, dir := range logging {
		require.NoError(t, filepath.WalkDir(filepath.Join(repository, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && entry.Name() == "integration":
				return filepath.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			source, err := os.ReadFile(path)
			for _, at := range logCall.FindAllSubmatchIndex(source, -1) {
				args := source[at[1]:]
				lines = append(lines, logLine(string(source[at[2]:at[3]]), string(args[:callEnd.FindIndex(args)[0]])))
			}
			return err
		}))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// logLine is the entry of a call in the golden list.
func logLine(method, args string) string {
	if method == "With" {
		args = "," + args // it has no message
	}
	args = strings.ReplaceAll(args, "because(", `"err", (`) // lease's attribute of an error
	names := []string{}
	for _, name := range attribute.FindAllStringSubmatch(args, -1) {
		names = append(names, name[1])
	}
	if at := attribute.FindStringIndex(args); at != nil {
		args = args[:at[0]]
	}
	if method != "With" {
		method = strings.ToUpper(method) + " "
	}
	return fmt.Sprintf("%s%s %s", method, strings.Trim(args, `"`), names)
}
