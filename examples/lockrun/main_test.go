//go:build unix

package main

import (
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
	"github.com/leasefence/leasefence/lease"
)

func TestMain(m *testing.M) { exampletest.Main(m, ".") }

// lockrun starts it.
func lockrun(t *testing.T, endpoint string, args ...string) *exampletest.Running {
	t.Helper()
	return exampletest.Start(t, append([]string{"-endpoints", endpoint}, args...)...)
}

// awaitFile waits until a command has created the file.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(path)
		return err == nil
	}, exampletest.Patience, time.Millisecond)
}

// awaitKeys waits until there are n keys in the lock's queue.
func awaitKeys(t *testing.T, client *clientv3.Client, name string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(exampletest.Keys(t, client, name+"/")) == n }, exampletest.Patience, time.Millisecond)
}

func TestLockrun_exitsAsTheCommandDoes(t *testing.T) {
	t.Parallel()
	addr, client := exampletest.StartEtcd(t)
	for script, code := range map[string]int{
		"exit 0":       0,
		"exit 7":       7,
		"kill -9 $$":   137,
		"kill -TERM 0": 143, // its group, which lockrun does not belong to
	} {
		t.Run(script, func(t *testing.T) {
			require.Equal(t, code, lockrun(t, addr, "job", "--", "sh", "-c", script).End(t))
			exampletest.RequireNothingLeft(t, client)
		})
	}
}

func TestLockrun_passesOnInputOutputAndTheToken(t *testing.T) {
	t.Parallel()
	addr, client := exampletest.StartEtcd(t)
	started := filepath.Join(t.TempDir(), "started")
	p := lockrun(t, addr, "job", "--", "sh", "-c",
		`echo "$LEASEFENCE_LOCK $LEASEFENCE_TOKEN $LEASEFENCE_KEY"; echo complaint >&2; touch "$0"; cat`, started)
	awaitFile(t, started)
	resp, err := client.Get(exampletest.Bounded(t), "job/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1, "the command runs without the lock")
	key, token := string(resp.Kvs[0].Key), strconv.FormatInt(resp.Kvs[0].CreateRevision, 10)

	_, err = io.WriteString(p.Stdin, "by way of the input")
	require.NoError(t, err)
	require.Zero(t, p.End(t))
	require.Equal(t, "job "+token+" "+key+"\nby way of the input\n", p.Text.String())
	require.Equal(t, "complaint\n", p.Stderr.String())
	exampletest.RequireNothingLeft(t, client)
}

func TestLockrun_passesOnSignals(t *testing.T) {
	t.Parallel()
	addr, client := exampletest.StartEtcd(t)
	// Caught here, it is not ignored by those that are started here, also where the tests run under nohup.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for name, sig := range map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP} {
		t.Run(name, func(t *testing.T) {
			started := filepath.Join(t.TempDir(), "started")
			p := lockrun(t, addr, "job", "--", "sh", "-c",
				`trap 'echo cleaned up; exit 9' `+name+`; while touch "$0"; do sleep 0.01; done`, started)
			awaitFile(t, started)
			p.Signal(t, sig)
			require.Equal(t, 9, p.End(t))
			require.Equal(t, "cleaned up\n", p.Text.String())
			exampletest.RequireNothingLeft(t, client)
		})
	}
}

// stubborn ignores what can be ignored, has a child of the same kind, and touches its files while it runs: until
// they cannot be any more, when the test has ended.
const stubborn = `trap '' TERM INT HUP
(while touch "$0.child"; do sleep 0.01; done) &
while touch "$0"; do sleep 0.01; done`

// lastSign is when the stubborn command or its child was last seen to be running.
func lastSign(t *testing.T, path string) time.Time {
	t.Helper()
	parent, err := os.Stat(path)
	require.NoError(t, err)
	child, err := os.Stat(path + ".child")
	require.NoError(t, err)
	if child.ModTime().After(parent.ModTime()) {
		return child.ModTime()
	}
	return parent.ModTime()
}

// Pain 14: etcdctl lock lets its command run on. Here it has ended before etcd can give the lock to anybody else.
func TestLockrun_endsTheCommandBeforeTheLockExpires(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	addr, _ := exampletest.StartEtcd(t)
	for name, tt := range map[string]struct {
		script string
		out    string
	}{
		"stubborn": {stubborn, ""},
		"obedient": {`trap 'echo cleaned up; exit 0' TERM; touch "$0.child"; while touch "$0"; do sleep 0.01; done`, "cleaned up\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := startProxy(t, addr)
			running := filepath.Join(t.TempDir(), "running")
			p := lockrun(t, link.addr(), "-ttl", ttl.String(), "-grace", "500ms", name, "--", "sh", "-c", tt.script, running)
			awaitFile(t, running+".child")
			link.cut()
			cut := time.Now() // no renewal was sent later

			require.Equal(t, exitLost, p.End(t))
			require.Equal(t, tt.out, p.Text.String())
			require.Contains(t, p.Stderr.String(), "no renewal was acknowledged before the deadline")
			require.Less(t, lastSign(t, running).Sub(cut), ttl)
		})
	}
}

// Pain 14, once more: somebody else may have the lock already, so there is no grace.
func TestLockrun_killsTheCommandWhenTheLockIsTakenAway(t *testing.T) {
	t.Parallel()
	for name, takeAway := range map[string]func(*testing.T, *clientv3.Client, string){
		"revoked": func(t *testing.T, client *clientv3.Client, key string) {
			t.Helper()
			resp, err := client.Get(exampletest.Bounded(t), key)
			require.NoError(t, err)
			_, err = client.Revoke(exampletest.Bounded(t), clientv3.LeaseID(resp.Kvs[0].Lease))
			require.NoError(t, err)
		},
		"deleted": func(t *testing.T, client *clientv3.Client, key string) {
			t.Helper()
			_, err := client.Delete(exampletest.Bounded(t), key)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, client := exampletest.StartEtcd(t)
			running := filepath.Join(t.TempDir(), "running")
			p := lockrun(t, addr, "-ttl", "1h", "-grace", "12m", "job", "--", "sh", "-c", stubborn, running)
			awaitFile(t, running+".child")
			takeAway(t, client, exampletest.Keys(t, client, "job/")[0])

			require.Equal(t, exitLost, p.End(t))
			exampletest.RequireNothingLeft(t, client)
			ended := time.Now()
			<-time.After(100 * time.Millisecond) // ten signs of life of whoever runs on
			require.False(t, lastSign(t, running).After(ended), "a process of the command runs on")
		})
	}
}

func TestLockrun_waitsForItsTurn(t *testing.T) {
	t.Parallel()
	addr, client := exampletest.StartEtcd(t)
	started := filepath.Join(t.TempDir(), "started")
	first := lockrun(t, addr, "job", "--", "cat")
	awaitKeys(t, client, "job", 1)
	second := lockrun(t, addr, "job", "--", "touch", started)
	awaitKeys(t, client, "job", 2)
	require.NoFileExists(t, started)
	require.Zero(t, first.End(t)) // which closes the input that cat waits for
	require.Zero(t, second.End(t))
	require.FileExists(t, started)
	exampletest.RequireNothingLeft(t, client)
}

func TestLockrun_leavesTheQueueOnASignal(t *testing.T) {
	t.Parallel()
	addr, client := exampletest.StartEtcd(t)
	held, err := newSession(t, client).Lock(exampletest.Bounded(t), "job")
	require.NoError(t, err)

	started := filepath.Join(t.TempDir(), "started")
	p := lockrun(t, addr, "-ttl", "1h", "job", "--", "touch", started)
	awaitKeys(t, client, "job", 2)
	p.Signal(t, syscall.SIGTERM)
	require.Equal(t, 143, p.End(t))
	require.Equal(t, []string{held.Key()}, exampletest.Keys(t, client, "job/"))
	leases, err := client.Leases(exampletest.Bounded(t))
	require.NoError(t, err)
	require.Len(t, leases.Leases, 1, "the waiter's lease was not revoked")
	require.NoFileExists(t, started)
}

func TestLockrun_saysThatItHasNotObtainedTheLock(t *testing.T) {
	t.Parallel()
	addr, client := exampletest.StartEtcd(t)
	session := newSession(t, client)
	_, err := session.Lock(exampletest.Bounded(t), "job", lease.WithOwner("somebody else"))
	require.NoError(t, err)
	nobody := startProxy(t, addr)
	nobody.cut()

	for name, tt := range map[string]struct {
		endpoint string
		args     []string
		says     string
	}{
		"held":      {addr, []string{"-wait=false", "job"}, `held by "somebody else"`},
		"no answer": {nobody.addr(), []string{"-ttl", "2s", "another"}, "has not answered for 2s"},
		"bad name":  {addr, []string{"a//b"}, "contains"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started := filepath.Join(t.TempDir(), "started")
			p := lockrun(t, tt.endpoint, append(tt.args, "--", "touch", started)...)
			require.Equal(t, exitNotObtained, p.End(t))
			require.Contains(t, p.Stderr.String(), tt.says)
			require.NoFileExists(t, started)
		})
	}
}

func TestLockrun_refusesWhatItCannotRun(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("no program"), 0o600))
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no command":     {[]string{"job"}, exitUsage, "want NAME -- CMD"},
		"no --":          {[]string{"job", "touch", "file"}, exitUsage, "want NAME -- CMD"},
		"unknown flag":   {[]string{"-what", "job", "--", "true"}, exitUsage, "-what"},
		"short TTL":      {[]string{"-ttl", "1s", "job", "--", "true"}, exitUsage, "-ttl is 1s, want 2s or more"},
		"long grace":     {[]string{"-grace", "3s", "job", "--", "true"}, exitUsage, "-grace is 3s, want 0s to a fifth of -ttl, 2s"},
		"no password":    {[]string{"-user", "root", "job", "--", "true"}, exitUsage, "-user and -password-file"},
		"not found":      {[]string{"job", "--", "no-such-command-anywhere"}, exitNotFound, "not found"},
		"not executable": {[]string{"job", "--", plain}, exitCannotRun, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := lockrun(t, "127.0.0.1:1", tt.args...) // nobody is asked
			require.Equal(t, tt.code, p.End(t))
			require.Contains(t, p.Stderr.String(), tt.says)
		})
	}
}

// Nobody would end the command when the lock expires.
func TestLockrun_takesTheCommandWithItWhenKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // the doc comment says so
	}
	addr, _ := exampletest.StartEtcd(t)
	running := filepath.Join(t.TempDir(), "running")
	p := lockrun(t, addr, "job", "--", "sh", "-c", `while touch "$0"; do sleep 0.01; done`, running)
	awaitFile(t, running)
	p.Signal(t, syscall.SIGKILL)
	p.End(t)
	require.Eventually(t, func() bool {
		before, err1 := os.Stat(running)
		<-time.After(100 * time.Millisecond)
		after, err2 := os.Stat(running)
		return err1 == nil && err2 == nil && before.ModTime().Equal(after.ModTime())
	}, exampletest.Patience/10, time.Millisecond, "the command runs on")
}
