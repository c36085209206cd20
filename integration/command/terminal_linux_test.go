package command_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// terminal is a process of the command on a pseudo terminal.
type terminal struct {
	running

	keyboard *os.File
	read     chan struct{} // closed when all output was read
}

// onTerminal starts the command in the foreground of a pseudo terminal with so many columns.
func onTerminal(t *testing.T, endpoint string, columns uint16, args ...string) *terminal {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = keyboard.Close() })
	fd := int(keyboard.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer func() { _ = screen.Close() }()

	p := &terminal{keyboard: keyboard, read: make(chan struct{})}
	p.cmd = newCommand(t, at(endpoint), args...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = screen, screen, screen
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.read)
		_, _ = io.Copy(&p.stdout, keyboard)
	}()
	return p
}

// result waits until the command has ended and all its output was read, and returns the exit code.
func (p *terminal) result(t *testing.T) int {
	t.Helper()
	err := p.cmd.Wait()
	<-p.read
	t.Logf("%v: %v\n%s", p.cmd.Args[1:], err, p.stdout.String())
	return p.cmd.ProcessState.ExitCode()
}

func (p *terminal) types(t *testing.T, text string) {
	t.Helper()
	_, err := p.keyboard.WriteString(text)
	require.NoError(t, err)
}

func TestRelease_wantsTheNameTyped(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	_, unlock := stage(t, client)
	for _, tt := range []struct {
		holder, typed string
		code          int
		says          string
		left          int // keys
	}{
		{"host-a/1", "", 75, "nothing was released", 2},
		{"host-a/1", "jobs", 75, "nothing was released", 2},
		{"host-a/1", "yes", 75, "nothing was released", 2},
		{"host-a/1", "jobs/nightly", 75, "not held with revision 2, but with 4", 1}, // somebody else gets the lock while the name is typed
		{"host-b/2", "jobs/nightly", 0, "no longer holds the lock", 0},
	} {
		p := onTerminal(t, addr, 200, "release", "jobs/nightly", "--mode", "now")
		p.stdout.await(t, "Type the name to continue: ")
		require.Regexp(t, "holds .* "+tt.holder, p.stdout.String())
		if tt.left == 1 {
			unlock()
		}
		p.types(t, tt.typed+"\n")
		require.Equal(t, tt.code, p.result(t))
		require.Contains(t, p.stdout.String(), tt.says)
		require.Len(t, keys(t, client, "jobs/nightly/"), tt.left)
	}
	p := onTerminal(t, addr, 200, "release", "jobs/nightly")
	require.Equal(t, 75, p.result(t), "nobody holds it")
}

func TestAuth_asksForThePasswordOnce(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	enableAuth(t, client)
	p := onTerminal(t, addr, 200, "doctor", "jobs/", "--user", "root", "--endpoints", addr+","+addr)
	p.stdout.await(t, "Password: ")
	p.types(t, "secret\n")
	require.Zero(t, p.result(t))
	require.Equal(t, 1, strings.Count(p.stdout.String(), "Password: "))
	require.Equal(t, 2, strings.Count(p.stdout.String(), "OK    commits of "))
}

// A signal ends a program that asks for the password, and the terminal shows what is typed afterwards.
func TestAuth_endsWhileItAsks(t *testing.T) {
	t.Parallel()
	addr, _ := etcd(t)
	for _, line := range []string{"lock job --user root -- true", "elect job --user root -- true", "ls --user root", "ui --user root"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			p := onTerminal(t, addr, 200, append([]string{"lock", "script " + line, "--", "sh", "-c", `trap : INT; "$@"; echo "code $?"; stty -a`, "sh", program}, strings.Fields(line)...)...)
			p.stdout.await(t, "Password: ")
			require.Eventually(t, func() bool {
				modes, err := unix.IoctlGetTermios(int(p.keyboard.Fd()), unix.TCGETS)
				return err == nil && modes.Lflag&unix.ECHO == 0
			}, patience, time.Millisecond)
			p.types(t, "\x03")
			p.stdout.await(t, "code 130")
			require.Zero(t, p.result(t))
			require.Contains(t, p.stdout.String(), " echo ")
		})
	}
}

// Tables fit a terminal, and control characters in names and owners do not reach it.
func TestTables_onATerminal(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	const odd = "jobs/\x1b]0;title\a"
	long := "jobs/" + strings.Repeat("name", 30)
	s := rig.NewSession(t, client, lease.Options{Owner: "\x1b[2J\tevil\n" + strings.Repeat("owner ", 30)})
	for _, name := range []string{odd, long} {
		rig.MustLock(t, s, name)
	}
	for _, args := range [][]string{{"ls"}, {"get", long}, {"get", odd}, {"lock", "--try", odd, "--", "true"}} {
		for _, columns := range []uint16{80, 120} {
			p := onTerminal(t, addr, columns, args...)
			p.result(t)
			require.NotContains(t, p.stdout.String(), "\x1b")
			if args[0] != "get" {
				require.Contains(t, p.stdout.String(), "title")
			}
			if args[0] == "lock" { // its error is no table
				continue
			}
			for line := range strings.Lines(p.stdout.String()) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\r\n ")), int(columns))
			}
			require.Contains(t, p.stdout.String(), "…")
		}
	}
	p := start(t, addr, "ls")
	require.Zero(t, p.end(t))
	require.Contains(t, p.stdout.String(), long, "nothing is cut without a terminal")
}

// The command is in the foreground of the terminal: it can read from it, and Ctrl-C reaches it. leasefence can write to
// the terminal from the background, and supervises, even after stty tostop. elect's next command is in the foreground,
// too, and inherits no ignored signal.
func TestElect_onATerminal(t *testing.T) {
	t.Parallel()
	addr, _ := etcd(t)
	p := onTerminal(t, addr, 200, "elect", "job", "--", "sh", "-c",
		`stty tostop; grep SigIgn /proc/$$/status; read line; echo "term $LEASEFENCE_TOKEN got $line"; while :; do sleep 0.03; done`)
	p.types(t, "one\n")
	p.stdout.await(t, "term 2 got one")
	require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
	p.types(t, "two\n")
	p.stdout.await(t, "got two")
	p.types(t, "\x03")
	require.Equal(t, 128+int(syscall.SIGINT), p.result(t))
	ignored := regexp.MustCompile(`SigIgn:\s*(\w+)`).FindAllStringSubmatch(p.stdout.String(), -1)
	require.Len(t, ignored, 2)
	require.Equal(t, ignored[0], ignored[1])
	require.Contains(t, p.stdout.String(), "asked to release: CMD gets SIGTERM")
	require.NotContains(t, p.stdout.String(), "<nil>")
}

// A command that cannot be executed does not keep the terminal: a script that runs leasefence reads from it afterwards.
func TestLock_keepsTheTerminalFromWhatItCannotRun(t *testing.T) {
	t.Parallel()
	addr, _ := etcd(t)
	junk := filepath.Join(t.TempDir(), "junk")
	require.NoError(t, os.WriteFile(junk, []byte("junk"), 0o700))
	for _, verb := range []string{"lock", "elect"} {
		p := onTerminal(t, addr, 200, "lock", "script", "--", "sh", "-c", `"$0" `+verb+` job -- "$1"; echo "code $?"; read line; echo "got $line"`, program, junk)
		p.stdout.await(t, "code 126")
		p.types(t, "one\n")
		p.stdout.await(t, "got one")
		require.Zero(t, p.result(t))
	}
}

// If standard error is closed, or full because nobody reads it, leasefence still supervises its command: a request for
// release, which it writes a message about, and a loss of the lock reach the command.
func TestLock_supervisesWithoutAStandardError(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verb, ends string // what the command does on SIGTERM, and what ends it
		closed     bool
		code       int
	}{
		"lock, full":    {"lock", "", false, 74},
		"lock, closed":  {"lock", "exit 9", true, 9},
		"elect, closed": {"elect", "exit 9", true, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, client := etcd(t)
			dir := t.TempDir()
			started, asked := filepath.Join(dir, "started"), filepath.Join(dir, "asked")
			reader, writer, err := os.Pipe()
			require.NoError(t, err)
			if tt.closed {
				require.NoError(t, reader.Close())
			} else {
				size, err := unix.FcntlInt(writer.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
				require.NoError(t, err)
				_, err = writer.Write(make([]byte, size))
				require.NoError(t, err)
			}
			cmd := newCommand(t, at(addr), tt.verb, "job", "--", "sh", "-c",
				`exec 2>/dev/null; trap 'touch "$1"; '"$2" TERM; touch "$0"; while :; do sleep 0.03; done`, started, asked, tt.ends)
			cmd.Stdout, cmd.Stderr = writer, writer
			require.NoError(t, cmd.Start())
			require.NoError(t, writer.Close())
			awaitFile(t, started)
			require.NoError(t, os.Remove(started))
			require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
			awaitFile(t, asked)
			switch {
			case !tt.closed:
				endHold(t, client, "job", "deleted")
				require.Eventually(t, func() bool { // the session closes once the command was killed
					all, err := client.Leases(rig.Bounded(t))
					return err == nil && len(all.Leases) == 0
				}, patience, 5*time.Millisecond)
				text, err := io.ReadAll(reader)
				require.NoError(t, err)
				require.Contains(t, string(text), "asked to release")
			case tt.verb == "elect": // it leads again
				awaitFile(t, started)
				require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			}
			_ = cmd.Wait()
			require.Equal(t, tt.code, cmd.ProcessState.ExitCode())
			requireNothingLeft(t, client)
		})
	}
}
