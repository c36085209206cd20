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

// sources returns the texts of the files of all modules whose names end in suffix.
func sources(t *testing.T, suffix string) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, suffix) {
			return err
		}
		text, err := os.ReadFile(path)
		all = append(all, string(text))
		return err
	}))
	return all
}

func TestDocuments_nameTestsThatExist(t *testing.T) {
	known, named := map[string]bool{}, 0
	for _, source := range sources(t, "_test.go") {
		for _, m := range testFunc.FindAllStringSubmatch(source, -1) {
			known[m[1]] = true
		}
	}
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
