//go:build unix

package command_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

const many = 50_000

// 50,000 locks in at most 2 s and 50 MB. A busy machine takes longer, and the race detector much more of both: the bound is that of
// processor time, and both hold only without it.
func TestLs_manyLocks(t *testing.T) {
	srv := etcdtest.StartProcess(t)
	client := srv.Client(t)
	granted, err := client.Grant(bounded(t), 3600)
	require.NoError(t, err)
	const batch = 100
	for i := 0; i < many; i += batch {
		ops := make([]clientv3.Op, 0, batch)
		for j := range batch {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("jobs/customer-%05d/nightly/%x-suffix", i+j, granted.ID), "host/1", clientv3.WithLease(granted.ID)))
		}
		_, err := client.Txn(bounded(t)).Then(ops...).Commit()
		require.NoError(t, err)
	}
	for _, format := range []string{"table", "json"} {
		t.Run(format, func(t *testing.T) {
			cmd := exec.CommandContext(bounded(t), program, "ls", "-o", format)
			cmd.Env = append(append(os.Environ(), patiently...), "ETCDCTL_ENDPOINTS="+srv.Endpoint(), "GORACE=atexit_sleep_ms=0")
			began := time.Now()
			out, err := cmd.Output()
			took := time.Since(began)
			require.NoError(t, err)
			if format == "json" {
				var all []struct{ Name string }
				require.NoError(t, json.Unmarshal(out, &all))
				require.Len(t, all, many)
			} else {
				require.Equal(t, many+1, strings.Count(string(out), "\n"))
			}
			state := cmd.ProcessState
			memory := state.SysUsage().(*syscall.Rusage).Maxrss << 10
			t.Logf("%d locks as %s: %v, %v of processors, %d MB", many, format, took, state.UserTime()+state.SystemTime(), memory/1e6)
			if !raceDetector() {
				require.LessOrEqual(t, memory, int64(50e6))
				require.LessOrEqual(t, state.UserTime()+state.SystemTime(), 2*time.Second)
			}
		})
	}
}
