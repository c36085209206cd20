package security_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// byRecipe is a server with the users of SECURITY.md. The password of each is its name.
type byRecipe struct{ *etcdtest.Server }

// startByRecipe executes the commands of SECURITY.md.
func startByRecipe(t *testing.T) byRecipe {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "SECURITY.md"))
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)\n## Permissions\n.*?\n```sh\n(.*?\n)```\n").FindSubmatch(text)
	require.NotNil(t, block, "no commands")
	srv := etcdtest.Start(t, etcdtest.Options{})
	for command := range strings.Lines(string(block[1])) {
		words := strings.Fields(command)
		require.Equal(t, "etcdctl", words[0], command)
		etcdctl := exec.CommandContext(rig.Bounded(t), etcdtest.Etcdctl(t), append(words[1:], "--endpoints", srv.Endpoint())...)
		if words[1] == "user" && words[2] == "add" {
			etcdctl.Args = append(etcdctl.Args, "--interactive=false")
			etcdctl.Stdin = strings.NewReader(words[3]) // the password
		}
		out, err := etcdctl.CombinedOutput()
		require.NoError(t, err, "%s%s", command, out)
	}
	return byRecipe{srv}
}

// as returns a client of a user.
func (s byRecipe) as(t *testing.T, name string) *clientv3.Client {
	t.Helper()
	return s.Client(t, logged, etcdtest.User(name, name))
}
