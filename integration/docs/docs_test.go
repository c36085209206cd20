package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

var (
	testNamed = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Za-z0-9]\\w*)`")
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// documents returns the texts of the project's Markdown files, by their paths.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			all[path] = string(text)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// tests returns the names of all tests of all modules.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			all[string(m[1])] = true
		}
		return err
	}))
	return all
}

func TestDocuments_nameTestsThatExist(t *testing.T) {
	known := tests(t)
	named := 0
	for path, text := range documents(t) {
		for _, m := range testNamed.FindAllStringSubmatch(text, -1) {
			named++
			require.True(t, known[m[1]], "%s names %s, which does not exist", path, m[1])
		}
	}
	require.Greater(t, named, 50)
}

func TestDocuments_linkToWhatIsThere(t *testing.T) {
	for path, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(filepath.Dir(path), target))
			require.NoError(t, err, "%s links to %s", path, target)
		}
	}
}
