package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clock"
)

func init() { clock.System = clock.Clock{} } // the host's boot clock also runs while a bubble's clock stands still

// leasefence ends soon after a signal although etcd hangs.
func TestSession_closesSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv, _ := startHub(t)
		s, client := newSession(t, srv, 0)
		h.app.stderr = io.Discard
		client.Cut()
		began := time.Now()
		(&session{app: h.app, Session: s}).close()
		require.Equal(t, cleanUp, time.Since(began))
	})
}

// A deadline that ends before --command-timeout, such as one of a single attempt, is an error, too.
func TestAsk_returnsAnyDeadline(t *testing.T) {
	t.Parallel()
	a := newApp()
	a.etcd.endpoints, a.etcd.dialTimeout, a.etcd.commandTimeout = []string{"127.0.0.1:1"}, time.Minute, time.Minute
	err := a.ask(func(context.Context, *clientv3.Client) error { return context.DeadlineExceeded })
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// nowhere is an etcd that does not exist: wrong usage is an error before anything is sent.
var nowhere = []string{"--endpoints", "127.0.0.1:1", "--command-timeout", "1ms"}

// requireUsageError runs a command line, which has to fail with a text and the command's usage.
func requireUsageError(t *testing.T, says string, args ...string) {
	t.Helper()
	var stderr bytes.Buffer
	a := newApp()
	a.out, a.stderr = &stderr, &stderr
	require.Equal(t, exitUsage, a.run(args), args)
	require.Contains(t, stderr.String(), says)
	require.Contains(t, stderr.String(), "usage: leasefence ")
	require.NotContains(t, stderr.String(), "secret")
}

func TestUsage_wrong(t *testing.T) {
	clearEnvironment(t)
	short := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(short, []byte("short"), 0o600))
	for line, says := range map[string]string{
		"lock":                                     "want NAME -- CMD",
		"lock -- true":                             "want NAME -- CMD",
		"lock a --":                                "want NAME -- CMD",
		"lock a b -- true":                         "2 names: several take --all",
		"lock a --shared -n 2 -- true":             "[permits shared] were all set",
		"lock a --shared --all -- true":            "[all shared] were all set",
		"lock a -n 0 -- true":                      "-n is 0, want 1 to 1024",
		"lock a -n 2000 -- true":                   "-n is 2000, want 1 to 1024",
		"lock a -n x -- true":                      "invalid argument",
		"lock a --wait soon -- true":               "invalid argument",
		"lock a --wait 0s -- true":                 "--wait is 0s, want more than 0s",
		"lock a --try --wait 1s -- true":           "[try wait] were all set",
		"lock a --era 40000 -- true":               "--era is 40000, want 0 to 32767",
		"lock a -o xml -- true":                    `--output is "xml", want table or json`,
		"lock a//b -- true":                        "contains",
		"lock --all a b/~c -- true":                "a part that begins with",
		"lock job touch file":                      "want NAME -- CMD",
		"lock --what job -- true":                  "-what",
		"lock --ttl 1s job -- true":                "--ttl is 1s, want 2s to 2500000h",
		"lock --ttl 2500001h job -- true":          "--ttl is 2500001h0m0s, want 2s to 2500000h",
		"lock --grace 3s job -- true":              "--grace is 3s, want 0s to a fifth of --ttl, 2s",
		"elect job":                                "want NAME -- CMD",
		"elect a b -- true":                        "2 names, want one",
		"elect a//b -- true":                       "contains",
		"elect a --ttl 1s -- true":                 "--ttl is 1s",
		"release a":                                "standard input is no terminal",
		"release a --token 3":                      "standard input is no terminal",
		"release a --yes":                          "--yes without --token",
		"release a --yes --token x":                "--token: ",
		"release a --mode kill --yes --token 3":    `--mode is "kill", want ask, wait or now`,
		"explain x":                                "TOKEN: ",
		"nosuch":                                   `unknown command "nosuch" for "leasefence"`,
		"help nosuch":                              `unknown command "nosuch" for "leasefence"`,
		"help lock nosuch":                         `unknown command "nosuch" for "leasefence lock"`,
		"completion nosuch":                        `unknown command "nosuch" for "leasefence completion"`,
		"ls a b":                                   "accepts between 0 and 1 arg(s), received 2",
		"ls --endpoints ,":                         "--endpoints is empty, or has an empty address",
		"ls --dial-timeout 0s":                     "--dial-timeout is 0s",
		"ls --cert x":                              "--cert and --key: one is empty",
		"ls --cacert /no/file":                     "--cacert, --cert and --key: open /no/file",
		"ls --user root":                           "--user without a password",
		"ls --user root:":                          "--user: the name or the password is empty",
		"ls --user :x":                             "--user: the name or the password is empty",
		"ls --user root --password-file /dev/null": "--user: the name or the password is empty",
		"ls --password-file x":                     "--password-file without --user",
		"ls --user a --password-file x":            "--password-file: open x",
		"ls --user=root:secret --password-file=f":  "want one password",
		"ls --user=root:secret --password=secret":  "want one password",
		"ui --every 1ms":                           "--every is 1ms, want 100ms or more",
		"ui --listen x":                            "--listen: ",
		"ui --audit /no/file":                      "--audit: open /no/file",
		"ui --token-file /no/file":                 "--token-file: open /no/file",
		"ui --token-file " + short:                 "has 5 bytes, want 16 or more",
	} {
		t.Run(line, func(t *testing.T) {
			requireUsageError(t, says, append(nowhere, strings.Fields(line)...)...)
		})
	}
}

func TestUsage_wrongEnvironment(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("ETCDCTL_AUTH_JWT_TOKEN", "secret")
	requireUsageError(t, "$ETCDCTL_AUTH_JWT_TOKEN is not supported", "ls", "--endpoints", "127.0.0.1:1")
	t.Setenv("ETCDCTL_USER", "root:secret") // takes the place of the JWT
	t.Setenv("ETCDCTL_PASSWORD", "secret")
	requireUsageError(t, "want one password", "ls", "--endpoints", "127.0.0.1:1")
	t.Setenv("ETCDCTL_DISCOVERY_SRV", "example.com")
	requireUsageError(t, "$ETCDCTL_DISCOVERY_SRV is not supported", "ls")
}

func TestLock_refusesWhatItCannotRun(t *testing.T) {
	clearEnvironment(t)
	for line, code := range map[string]int{
		"lock a -- no-such-command": exitNotFound, "elect a -- no-such-command": exitNotFound, "lock a -- /dev/null": exitCannotRun,
	} {
		a := newApp()
		a.stderr = io.Discard
		require.Equal(t, code, a.run(append(nowhere, strings.Fields(line)...)), line)
	}
}

// clearEnvironment unsets etcdctl's variables until the test ends.
func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "ETCDCTL_") {
			t.Setenv(name, "") // as good as unset: readEnv ignores it
		}
	}
}

func TestUsage_wrongTexts(t *testing.T) {
	clearEnvironment(t)
	wrong := func(says string, args ...string) {
		t.Helper()
		requireUsageError(t, says, append(nowhere, args...)...)
	}
	wrong(`NAME "~a" has a part that begins with "~"`, "get", "~a")
	wrong(`NAME is empty, want 1 to 2304 bytes`, "watch", "")
	wrong(`NAME "a/" ends with "/"`, "release", "a/", "--yes", "--token", "7")
	wrong(`PREFIX is "\xff", want UTF-8`, "ls", "\xff")
	wrong(`PREFIX is "\xff", want UTF-8`, "doctor", "\xff")
	wrong(`PREFIX is "\xff", want UTF-8`, "ui", "\xff", "--listen", "127.0.0.1:0")
	wrong(`PREFIX has 2305 bytes, want 0 to 2304`, "explain", "7", strings.Repeat("a", 2305))
	wrong(`--owner has 4097 bytes, want 0 to 4096`, "lock", "a", "--owner", strings.Repeat("a", 4097), "--", "true")
	wrong(`--all: NAME "a\nb" has a line break`, "lock", "--all", "a\nb", "c", "--", "true")
	many := []string{"lock", "--all"}
	for n := range 65 {
		many = append(many, fmt.Sprint(n))
	}
	wrong(`--all: 65 names, want 64 at most`, append(many, "--", "true")...)
}

func TestTable_isAlignedAndFits(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		0: "" +
			"TOKEN          NAME         WAITERS\n" +
			"1              ö/long/name  0\n" +
			"1234567890123  a            17\n",
		20: "" +
			"TOKEN          NAME…\n" +
			"1              ö/lo…\n" +
			"1234567890123  a   …\n",
	} {
		var out bytes.Buffer
		table := (&app{out: &out, width: width}).newTable("TOKEN", "NAME", "WAITERS")
		table.add("1", "ö/long/name", "0")
		table.add("1234567890123", "a", "17")
		require.NoError(t, table.flush())
		require.Equal(t, want, out.String())
	}
}

func TestHarmless(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "",
		"jobs/nächtlich ~ \"x\"": "jobs/nächtlich ~ \"x\"",
		"a\tb":                   `"a\tb"`,
		"a\x1b[2J":               `"a\x1b[2J"`,
		"a\nb":                   `"a\nb"`,
		"\xff":                   `"\xff"`,
		"a\u202eb":               `"a\u202eb"`, // it would turn the direction of the text after it
	} {
		require.Equal(t, want, harmless(text))
	}
}

// JSON output has invisible characters only as escapes, and decodes to the same text.
func TestPrintJSON_escapesInvisibleCharacters(t *testing.T) {
	t.Parallel()
	const odd = "nächtlich <\"x\"> \u009b2J \u202eb\u2066 \x7f \u00a0 \t\n \U000e0041 \U0001f512 \ufeff\u2028"
	var out, log bytes.Buffer
	require.NoError(t, printJSON(&out, []string{odd}))
	require.Equal(t, `["nächtlich <\"x\"> \u009b2J \u202eb\u2066 \u007f \u00a0 \t\n \udb40\udc41 🔒 \ufeff\u2028"]`+"\n", out.String())
	var back []string
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, []string{odd}, back)

	a := &app{stderr: &log, output: outputJSON}
	a.say("%s", odd)
	require.Contains(t, log.String(), `{"message":"`)
	a.complain(&exitError{exitFailed, errors.New(odd)}, nil)
	a.logger().Warn(odd)
	require.Equal(t, 3, strings.Count(log.String(), `\u202eb`))
	require.NotContains(t, log.String(), "\u202e")
}

// watch shows a queue however long it is: it does not need the remaining time of the leases. Lines fit a terminal.
func TestWatch_aLongQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, client := startHub(t)
		longQueue(t, client)
		a := h.app
		watched := func() string {
			var out bytes.Buffer
			a.out = &out
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.ErrorIs(t, a.watch(ctx, client.Client, "a"), context.DeadlineExceeded)
			return out.String()
		}
		require.Contains(t, watched(), "  exclusive  1        999 ")
		a.width = 60
		for line := range strings.Lines(watched()) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), a.width+len("\n"))
		}
		a.output = outputJSON
		require.Regexp(t, `^{"time":"[^"]+","name":"a","holders":\[{`, watched())
	})
}
