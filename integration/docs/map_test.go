package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	pathNamed = regexp.MustCompile("`([a-z]+(?:/[\\w.]+)*/?)`")
	arrow     = regexp.MustCompile(`(?m)^\t(\w+) --> (\w+)$`)
)

// The files and folders that the map names exist, and its arrows are imports.
func TestMap_isOfThisTree(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "map.md"))
	require.NoError(t, err)
	named := pathNamed.FindAllSubmatch(text, -1)
	require.Greater(t, len(named), 40)
	for _, m := range named {
		_, err := os.Stat(filepath.Join(root, string(m[1])))
		require.NoError(t, err, "the map names %s", m[1])
	}

	arrows := arrow.FindAllSubmatch(text, -1)
	require.Greater(t, len(arrows), 10)
	for _, m := range arrows {
		from, to := strings.ReplaceAll(string(m[1]), "_", "/"), strings.ReplaceAll(string(m[2]), "_", "/")
		files, err := filepath.Glob(filepath.Join(root, from, "*.go"))
		require.NoError(t, err)
		imports := false
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			imports = imports || !strings.HasSuffix(file, "_test.go") &&
				strings.Contains(string(source), `"github.com/leasefence/leasefence/`+to+`"`)
		}
		require.True(t, imports, "the map has an arrow from %s to %s", from, to)
	}
}
