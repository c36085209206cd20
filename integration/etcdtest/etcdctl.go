package etcdtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const debianPath = "/usr/bin/etcdctl"

// Etcdctl returns the path of etcdctl in the version that this module requires. The first call on a machine builds it,
// which takes half a minute; the result is kept in Go's build cache and so shared by all packages and runs.
func Etcdctl(tb testing.TB) string {
	tb.Helper()
	path, err := buildEtcdctl()
	require.NoError(tb, err)
	return path
}

var buildEtcdctl = sync.OnceValues(func() (string, error) {
	// Of the ways to get a tool's binary only "go tool" caches what it has linked; -n prints where instead of running it.
	out, err := exec.Command("go", "tool", "-n", "go.etcd.io/etcd/etcdctl/v3").Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return "", fmt.Errorf("etcdtest: build etcdctl: %w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("etcdtest: build etcdctl: %w", err)
	}
	path := strings.TrimSpace(string(out))
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("etcdtest: build etcdctl: %w", err)
	}
	return path, nil
})

// DebianEtcdctl returns the path of the etcdctl that the system has installed, which is 3.4 where it comes from Debian's
// package etcd-client. Where there is none the test is skipped by [Skip].
func DebianEtcdctl(tb testing.TB) string {
	tb.Helper()
	if _, err := os.Stat(debianPath); err != nil {
		Skip(tb, "needs %s, for instance from Debian's package etcd-client: %v", debianPath, err)
	}
	return debianPath
}
