package etcdtest_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// leakEnv makes TestLeak_helper leak a goroutine, in a child process of the test below.
const leakEnv = "ETCDTEST_LEAK"

func TestLeak_helper(*testing.T) {
	if os.Getenv(leakEnv) != "" {
		go leak()
	}
}

func leak() { select {} }

func TestMain_failsAPackageThatLeaks(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^TestLeak_helper$")
	cmd.Env = append(os.Environ(), leakEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "PASS")
	require.Contains(t, string(out), "etcdtest_test.leak")
}

func TestMain(m *testing.M) { etcdtest.Main(m) }
