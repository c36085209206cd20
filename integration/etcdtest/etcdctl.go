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
// which takes half a minute; Go's build cache keeps the result for all packages and runs.
func Etcdctl(tb testing.TB) string {
	tb.Helper()
	path, err := buildEtcdctl()
	require.NoError(tb, err)
	return path
}

var buildEtcdctl = sync.OnceValues(func() (string, error) {
	// Only "go tool" caches the linked binary of a tool. With -n it prints the binary's path instead of running it.
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

// DebianEtcdctl returns the path of the installed etcdctl, which is 3.4 in Debian's package etcd-client. If there is
// none, it calls [Skip].
func DebianEtcdctl(tb testing.TB) string {
	tb.Helper()
	if _, err := os.Stat(debianPath); err != nil {
		Skip(tb, "needs %s, for instance from Debian's package etcd-client: %v", debianPath, err)
	}
	return debianPath
}
