package etcdtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// leakEnv makes TestLeak_helper leave a goroutine behind. The tests below set it; otherwise the helper does nothing.
const leakEnv = "ETCDTEST_LEAK"

func TestLeak_helper(t *testing.T) {
	switch os.Getenv(leakEnv) {
	case "package":
		go leak()
	case "test":
		etcdtest.VerifyNoLeaks(t)
		go leak()
	}
}

func leak() { select {} }

func TestMain_failsAPackageThatLeaks(t *testing.T) {
	out, err := runLeak(t, "package")
	require.Error(t, err)
	require.Contains(t, out, "PASS")
	require.Contains(t, out, "etcdtest_test.leak")
}

func TestVerifyNoLeaks_failsATestThatLeaks(t *testing.T) {
	out, err := runLeak(t, "test")
	require.Error(t, err)
	require.Contains(t, out, "--- FAIL: TestLeak_helper")
	require.Contains(t, out, "etcdtest_test.leak")
}

func TestVerifyNoLeaks_acceptsAServerAndItsClients(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	grant, err := client.Grant(bounded(t), 60)
	require.NoError(t, err)
	_, err = client.KeepAlive(bounded(t), grant.ID)
	require.NoError(t, err)
	client.Watch(bounded(t), "key")
	srv.Restart(t)
}

// runLeak runs TestLeak_helper in a process of its own and returns what it prints.
func runLeak(t *testing.T, where string) (string, error) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^TestLeak_helper$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s", leakEnv, where))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
