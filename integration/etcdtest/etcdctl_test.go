package etcdtest_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestEtcdctl_talksToTheServer(t *testing.T) {
	for name, tt := range map[string]struct {
		path    func(testing.TB) string
		version string
	}{
		"built":  {etcdtest.Etcdctl, "etcdctl version: 3.7."},
		"debian": {etcdtest.DebianEtcdctl, "etcdctl version: 3."},
	} {
		t.Run(name, func(t *testing.T) {
			path := tt.path(t)
			out, err := exec.CommandContext(t.Context(), path, "version").CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), tt.version)

			srv := etcdtest.Start(t, etcdtest.Options{})
			out, err = exec.CommandContext(t.Context(), path, "--endpoints", srv.Endpoint(), "put", "key", "value").CombinedOutput()
			require.NoError(t, err, string(out))
			require.Equal(t, []string{"key"}, srv.Keys(t, ""))
		})
	}
}
