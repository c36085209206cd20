package security_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// recipe returns the commands under a heading of SECURITY.md.
func recipe(t *testing.T, heading string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, "SECURITY.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(b), "\n## "+heading+"\n")
	require.True(t, found, "no section %q", heading)
	_, block, found := strings.Cut(section, "\n```sh\n")
	require.True(t, found, "no commands")
	block, _, found = strings.Cut(block, "\n```\n")
	require.True(t, found)
	return strings.Split(block, "\n")
}

// operator executes the commands of etcdctl that the recipe uses. The password of a user is its name.
type operator struct{ client *clientv3.Client }

func (o operator) run(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	require.GreaterOrEqual(t, len(words), 3, command)
	require.Equal(t, "etcdctl", words[0], command)
	prefix := slices.Contains(words, "--prefix")
	args := slices.DeleteFunc(words[3:], func(word string) bool { return word == "--prefix" })
	ctx, c := rig.Bounded(t), o.client
	var err error
	switch what := strings.Join(words[1:3], " "); {
	case what == "user add" && len(args) == 1:
		_, err = c.UserAdd(ctx, args[0], args[0])
	case what == "role add" && len(args) == 1:
		_, err = c.RoleAdd(ctx, args[0])
	case what == "user grant-role" && len(args) == 2:
		_, err = c.UserGrantRole(ctx, args[0], args[1])
	case what == "role grant-permission" && len(args) == 3:
		kind, found := map[string]clientv3.PermissionType{
			"read": clientv3.PermissionType(clientv3.PermRead), "write": clientv3.PermissionType(clientv3.PermWrite),
			"readwrite": clientv3.PermissionType(clientv3.PermReadWrite),
		}[args[1]]
		require.True(t, found, command)
		end := ""
		if prefix {
			end = clientv3.GetPrefixRangeEnd(args[2])
		}
		_, err = c.RoleGrantPermission(ctx, args[0], args[2], end, kind)
	case what == "auth enable" && len(args) == 0:
		_, err = c.AuthEnable(ctx)
	default:
		require.FailNow(t, "unknown command", command)
	}
	require.NoError(t, err, command)
}

// byRecipe is a server with the users of SECURITY.md.
type byRecipe struct{ *etcdtest.Server }

func startByRecipe(t *testing.T) byRecipe {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{})
	o := operator{srv.Client(t)}
	for _, command := range recipe(t, "Permissions") {
		o.run(t, command)
	}
	return byRecipe{srv}
}

// as returns a client of a user.
func (s byRecipe) as(t *testing.T, name string) *clientv3.Client {
	t.Helper()
	return s.Client(t, logged, etcdtest.User(name, name))
}
