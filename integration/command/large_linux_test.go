package command_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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
			out := sampled{cmd: cmd}
			cmd.Stdout, cmd.Stderr = &out, os.Stderr
			began := time.Now()
			require.NoError(t, cmd.Run())
			took := time.Since(began)
			if format == "json" {
				var all []struct{ Name string }
				require.NoError(t, json.Unmarshal(out.text, &all))
				require.Len(t, all, many)
			} else {
				require.Equal(t, many+1, bytes.Count(out.text, []byte("\n")))
			}
			processors := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			t.Logf("%d locks as %s: %v, %v of processors, %s kB", many, format, took, processors, out.peak)
			memory, err := strconv.Atoi(out.peak)
			require.NoError(t, err)
			require.LessOrEqual(t, memory<<10, int(50e6))
			require.LessOrEqual(t, processors, 2*time.Second)
		})
	}
}

// sampled is the output of a command, and its peak memory in kB. The system's figure for a process that has ended includes
// memory of the process that started it, so this reads the figure while the command runs, at each part of its output.
type sampled struct {
	cmd  *exec.Cmd
	text []byte
	peak string
}

var peak = regexp.MustCompile(`VmHWM:\s*(\d+) kB`)

func (s *sampled) Write(part []byte) (int, error) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid)) // fails if it has ended
	if m := peak.FindSubmatch(status); m != nil {
		s.peak = string(m[1])
	}
	s.text = append(s.text, part...)
	return len(part), nil
}
