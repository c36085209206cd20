package docs_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leasetest"
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

// service is the service that docs/testing.md tests.
type service struct{ leading atomic.Bool }

func (s *service) leads() bool { return s.leading.Load() }

func start(t *testing.T, session *lease.Session) *service {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s, done := &service{}, make(chan struct{})
	go func() {
		defer close(done)
		_ = election.Run(ctx, session, "service", election.Options{}, func(ctx context.Context, _ fence.Token) error {
			s.leading.Store(true)
			defer s.leading.Store(false)
			<-ctx.Done()
			return nil
		}, election.WithRejoin())
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return s
}

func TestService_stepsBackWhenItIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		s := srv.Session(t, lease.Options{Owner: "a"})
		svc := start(t, s.Session) // campaigns for "service"
		synctest.Wait()            // all that can happen now has happened
		require.True(t, svc.leads())

		s.Partition()
		time.Sleep(30 * time.Second) // of the bubble
		synctest.Wait()
		require.False(t, svc.leads())
		_, somebody := srv.Holder("service")
		require.False(t, somebody)

		s.Heal()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.True(t, svc.leads())
	})
}

func TestLedger_refusesTheLateWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		a, b := srv.Session(t, lease.Options{}), srv.Session(t, lease.Options{})
		var book ledger
		first, err := a.Lock(t.Context(), "ledger")
		require.NoError(t, err)
		require.NoError(t, a.Expire(t.Context()))

		second, err := b.Lock(t.Context(), "ledger")
		require.NoError(t, err)
		require.NoError(t, book.Append(second.Context(), second.Token(), "second"))
		require.ErrorIs(t, book.Append(first.Context(), first.Token(), "late"), fence.ErrStale)
	})
}
