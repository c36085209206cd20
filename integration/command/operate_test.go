//go:build unix

package command_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

var update = flag.Bool("update", false, "write the golden files")

func requireGolden(t *testing.T, file, text string) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "if the new text is right, run the test with -update")
}

var variable = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[-+Z:\d]*`), "TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`/(r?)[0-9a-f]{12,16}-`), "/${1}LEASE-"},
	{regexp.MustCompile(`~slot/\d`), "~slot/SLOT"},
	{regexp.MustCompile(`\b[0-9a-f]{12,16}\b`), "LEASE"},
	{regexp.MustCompile(`LEASE-(of\d-)?[0-9a-z-]+`), "LEASE-${1}SUFFIX"},
	{regexp.MustCompile(`the median of 10 is \S+, the slowest \S+;`), "the median of 10 is LATENCY, the slowest LATENCY;"},
	{regexp.MustCompile(`etcd 3\.\d+\.\d+`), "etcd VERSION"},
	{regexp.MustCompile(`\b(\d+m)?\d+s\b`), "SECONDS"},
	{regexp.MustCompile(`"ttl_seconds":\d+`), `"ttl_seconds":SECONDS`},
	{regexp.MustCompile(`\b[\d.]+ (KiB|MiB|GiB)\b`), "SIZE"},
	{regexp.MustCompile(`(?m) +$`), ""},
	{regexp.MustCompile(`  +`), "  "}, // padding depends on the lengths of cells
}

// normal replaces what differs from run to run in a text.
func normal(text string) string {
	for _, v := range variable {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	return text
}

// operating returns the command lines in the README's section "Operate".
func operating(t *testing.T) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Operate\n")
	require.True(t, found, "README.md has no section Operate")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if line, found := strings.CutPrefix(line, "leasefence "); found {
			line, _, _ = strings.Cut(line, "#")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// Every command line in the README's section "Operate" works. The golden file has their output.
func TestOperate_readme(t *testing.T) {
	t.Parallel()
	lines := operating(t)
	require.GreaterOrEqual(t, len(lines), 8)
	outputs := make([]string, len(lines))
	t.Run("each", func(t *testing.T) {
		for i, line := range lines {
			t.Run(line, func(t *testing.T) {
				t.Parallel()
				outputs[i] = operate(t, line)
			})
		}
	})
	requireGolden(t, "operate.golden", strings.Join(outputs, "\n"))
}

// operate runs a command line. Somebody holds jobs/nightly then and somebody else waits for it, except for lines that
// run a command without --try.
func operate(t *testing.T, line string) string {
	t.Helper()
	addr, client := etcd(t)
	words := strings.Fields(line)
	var unlock func()
	if words[0] != "elect" && (words[0] != "lock" || strings.Contains(line, "--try")) {
		var token string
		token, unlock = stage(t, client)
		for i := range words {
			if words[i] == "4711" {
				words[i] = token
			}
		}
	}
	if words[0] == "ui" {
		words = append(words, "--listen", "127.0.0.1:0") // the default port may be taken
	}
	p := startWith(t, append(at(addr), "PATH="+tools(t)+":"+os.Getenv("PATH")), words...)
	if words[0] == "watch" {
		p.stdout.await(t, "host-a/1")
		unlock()
		p.stdout.await(t, "host-b/2")
		p.signal(t, syscall.SIGINT)
	}
	if words[0] == "ui" {
		p.stdout.await(t, "\n")
		p.signal(t, syscall.SIGINT)
	}
	code := p.end(t)
	return fmt.Sprintf("$ leasefence %s\n%s[exit code %d]\n", line, normal(p.stdout.String()+p.stderr.String()), code)
}

// stage has host-a/1 hold jobs/nightly, with token 2, and a permit of jobs/exports, with token 3, and has host-b/2 wait
// for jobs/nightly, with token 4. It returns the holder's token and what unlocks jobs/nightly.
func stage(t *testing.T, client *clientv3.Client) (token string, unlock func()) {
	t.Helper()
	a, b := rig.NewSession(t, client, lease.Options{Owner: "host-a/1"}), rig.NewSession(t, client, lease.Options{Owner: "host-b/2"})
	held := rig.MustLock(t, a, "jobs/nightly")
	_, err := a.Permit(rig.Bounded(t), "jobs/exports", 3)
	require.NoError(t, err)
	var waits sync.WaitGroup
	waits.Go(func() { _, _ = b.Lock(t.Context(), "jobs/nightly") })
	t.Cleanup(waits.Wait)
	rig.AwaitQueue(t, client, "jobs/nightly", 2)
	return held.Token().String(), func() { require.NoError(t, held.Unlock(rig.Bounded(t))) }
}

// tools returns a folder with stand-ins for the programs that the README runs.
func tools(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"backup", "report", "export", "transfer", "scheduler"} {
		script := "#!/bin/sh\necho \"" + name + " $*: lock $(echo $LEASEFENCE_LOCK), token $LEASEFENCE_TOKEN, key $LEASEFENCE_KEY, shared ${LEASEFENCE_SHARED:-0}\"\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700)) //nolint:gosec // a program has to be executable
	}
	return dir
}

// If etcd does not answer, no command hangs, and each says so, and why there is no connection. With a user, etcd's
// client authenticates before the command begins, and does not say why.
func TestDown_everyCommandSaysSo(t *testing.T) {
	t.Parallel()
	const silent = `etcd at \[\\?"127.0.0.1:1\\?"\] has not answered for `
	for flags, tt := range map[string]struct {
		says  string
		codes map[string]int
	}{
		"--command-timeout 500ms": {silent + `(2s|500ms, or not in full \(--command-timeout\)) \(no connection: `, map[string]int{
			"ls":                                    1,
			"get a":                                 1,
			"watch a":                               1,
			"release a --yes --token 3":             1,
			"release a --mode wait --yes --token 3": 1,
			"explain 3":                             1,
			"lock a --ttl 2s -- echo in":            75,
			"lock a --ttl 2s --try -- echo in":      75,
			"elect a --ttl 2s -- echo in":           75,
			"lock a -o json --ttl 2s -- echo in":    75,
		}},
		"--dial-timeout 500ms --user root:secret": {silent, map[string]int{
			"ls": 1, "get a": 1, "doctor": 1, "lock a --ttl 2s -- echo in": 75,
		}},
		"--ttl 1h --wait 1s": {"not obtained in 1s", map[string]int{"lock a -- echo in": 75, "lock a --user root:secret -- echo in": 75}},
		"--cert x":           {"--cert and --key: one is empty", map[string]int{"lock a -- echo in": 64}},
	} {
		for line, code := range tt.codes {
			t.Run(line+" "+flags, func(t *testing.T) {
				t.Parallel()
				verb, rest, _ := strings.Cut(line, " ")
				p := start(t, "127.0.0.1:1", strings.Fields(verb+" "+flags+" "+rest)...)
				require.Equal(t, code, p.end(t))
				require.Regexp(t, tt.says, p.stderr.String())
				require.Empty(t, p.stdout.String())
			})
		}
	}
}

// Each verdict, in words.
func TestExplain_verdicts(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	_, unlock := stage(t, client) // 2 holds, 4 waits, 3 holds a permit
	_, err := client.Put(rig.Bounded(t), "data", "")
	require.NoError(t, err)
	run := func(args ...string) string {
		p := start(t, addr, append([]string{"explain", "-o", "json"}, args...)...)
		require.Zero(t, p.end(t))
		var e struct {
			Verdict string
			Says    []string
		}
		require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &e))
		return "$ leasefence explain " + strings.Join(args, " ") + "\n" + normal(strings.Join(e.Says, "\n")) + "\nverdict: " + e.Verdict + "\n"
	}
	var all []string
	for _, args := range [][]string{{"2"}, {"4"}, {"3"}, {"5"}, {"1000"}, {"281474976710658"}, {"2", "jobs/"}, {"2", "other/"}} {
		all = append(all, run(args...))
	}
	set := lock(t, addr, "--owner", "host-c/3", "--all", "set/c", "set/a", "set/b", "--", "cat")
	rig.AwaitQueue(t, client, "set", 3)
	all = append(all, run("6"))
	require.Zero(t, set.end(t))
	unlock()
	etcds := contend(t, client, 3600, "job/", "", "") // a key of etcd's own packages, which have no owner
	nine := fmt.Sprint(etcds.rev)
	all = append(all, "Now it is unlocked.\n", run("2"), run("281474976710658"), run(nine))
	etcds.leave(t, client, false)
	all = append(all, run(nine))
	resp, err := client.Get(rig.Bounded(t), "x")
	require.NoError(t, err)
	_, err = client.Compact(rig.Bounded(t), resp.Header.Revision)
	require.NoError(t, err)
	all = append(all, "Now etcd has compacted its history.\n", run("2"), run("4"))
	requireGolden(t, "explain.golden", strings.Join(all, "\n"))
}

// release releases nobody but the holder with the token. A holder of etcd's own packages cannot be asked: the error
// names the other modes.
func TestRelease_refuses(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	contend(t, client, 3600, "job/", "", "")
	p := start(t, addr, "release", "job", "--yes", "--token", "999", "--mode", "now")
	require.Equal(t, 75, p.end(t))
	require.Contains(t, p.stderr.String(), "not held with revision 999")
	require.Empty(t, p.stdout.String())
	p = start(t, addr, "release", "job", "--yes", "--token", "2")
	require.Equal(t, 1, p.end(t))
	require.Contains(t, p.stderr.String(), "cannot be asked: --mode now deletes its key")
	require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2", "--mode", "now").end(t))
	require.Empty(t, keys(t, client, "job/"))
}

func TestRelease_waits(t *testing.T) {
	t.Parallel()
	srv := etcdtest.StartCluster(t, 1, etcdtest.Options{}) // a process of its own, so that its metrics count only this test
	token, unlock := stage(t, srv.Client(t))
	p := start(t, srv.Endpoints()[0], "release", "jobs/nightly", "--mode", "wait", "--yes", "--token", token)
	// The command inspects the lock first, which reads the two leases. Release reads the holder's lease while it waits.
	const reads = `grpc_server_started_total{grpc_method="LeaseTimeToLive",grpc_service="etcdserverpb.Lease",grpc_type="unary"}`
	require.Eventually(t, func() bool {
		all, err := etcdproc.Metrics(rig.Bounded(t), http.DefaultClient, "http://"+srv.Endpoints()[0])
		require.NoError(t, err)
		return all[reads] >= 3
	}, patience, 10*time.Millisecond)
	unlock()
	require.Zero(t, p.end(t))
	require.Contains(t, p.stdout.String(), "the holder with token 2 no longer holds the lock")
}

const many = 50_000

// ls lists 50,000 locks in at most 2 s of processor time and 50 MB. A busy machine would break a bound on wall-clock
// time.
func TestLs_manyLocks(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // other systems have no /proc/PID/status
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
