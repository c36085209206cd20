package command_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

const many = 50_000

// ls lists 50,000 locks in at most 2 s of processor time and 50 MB. A busy machine would break a bound on wall-clock
// time. The race detector needs much more of both, so the command is built without it.
func TestLs_manyLocks(t *testing.T) {
	plain := program
	if raceDetector() {
		plain = filepath.Join(t.TempDir(), "plain")
		require.NoError(t, build(plain, "-race=false"))
	}
	srv := etcdtest.StartCluster(t, 1, etcdtest.Options{})
	client := srv.Client(t)
	granted, err := client.Grant(rig.Bounded(t), 3600)
	require.NoError(t, err)
	rig.PutMany(t, client, many, func(i int) clientv3.Op {
		return clientv3.OpPut(fmt.Sprintf("jobs/customer-%05d/nightly/%x-suffix", i, granted.ID), "host/1", clientv3.WithLease(granted.ID))
	})
	for _, format := range []string{"table", "json"} {
		t.Run(format, func(t *testing.T) {
			cmd := newCommand(t, at(srv.Endpoints()[0]), "ls", "-o", format)
			cmd.Path = plain
			began := time.Now()
			out, memory := outputAndMemory(t, cmd)
			took := time.Since(began)
			if format == "json" {
				var all []struct{ Name string }
				require.NoError(t, json.Unmarshal(out, &all))
				require.Len(t, all, many)
			} else {
				require.Equal(t, many+1, bytes.Count(out, []byte("\n")))
			}
			processors := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			t.Logf("%d locks as %s: %v, %v of processors, %d MB", many, format, took, processors, memory/1e6)
			require.Positive(t, memory)
			require.LessOrEqual(t, memory, int64(50e6))
			require.LessOrEqual(t, processors, 2*time.Second)
		})
	}
}

var peak = regexp.MustCompile(`VmHWM:\s*(\d+) kB`)

// outputAndMemory runs a command and returns its output and its peak memory in bytes. The system's figure for a process
// that has ended includes memory of the process that started it, so this reads the figure while the command runs, after
// each part of its output.
func outputAndMemory(t *testing.T, cmd *exec.Cmd) (text []byte, memory int64) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	part := make([]byte, 32<<10)
	for {
		n, err := out.Read(part)
		text = append(text, part[:n]...)
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)) // fails if it has ended
		if m := peak.FindSubmatch(status); m != nil {
			kib, err := strconv.ParseInt(string(m[1]), 10, 64)
			require.NoError(t, err)
			memory = kib << 10
		}
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Wait(), stderr.String())
	return text, memory
}
