//go:build unix

package command_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

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
		p.awaitOutput(t, "host-a/1")
		unlock()
		p.awaitOutput(t, "host-b/2")
		p.signal(t, syscall.SIGINT)
	}
	if words[0] == "ui" {
		p.awaitOutput(t, "\n")
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
