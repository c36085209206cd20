//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each kind of lock excludes what it has to, and nothing else. cat holds a lock until its input ends.
func TestLock_kinds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		held  []string // arguments of the holders
		keys  int      // of the holders
		out   []string // arguments of locks that the holders exclude
		still []string // arguments of locks that they do not exclude
	}{
		"alone":   {[]string{"a"}, 1, []string{"a", "a --shared", "a -n 2"}, []string{"b", "a/b"}},
		"readers": {[]string{"a --shared", "a --shared"}, 2, []string{"a"}, []string{"a --shared"}},
		"permits": {[]string{"a -n 2", "a -n 2"}, 2, []string{"a -n 2"}, []string{"b -n 2"}},
		"a set":   {[]string{"--all a b"}, 2, []string{"a", "b", "--all b c", "b --shared"}, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, client := etcd(t)
			var holders []*running
			for _, line := range tt.held {
				holders = append(holders, lock(t, addr, append(strings.Fields(line), "--", "cat")...))
			}
			require.Eventually(t, func() bool { return len(keys(t, client, "")) == tt.keys }, patience, time.Millisecond)
			for _, line := range tt.out {
				require.Equal(t, 75, lock(t, addr, append(strings.Fields(line), "--try", "--", "echo", "in")...).end(t), line)
			}
			var waiters []*running
			for _, line := range tt.out {
				// The time includes opening the session; if --wait cut that short, its lease would be left behind.
				waiters = append(waiters, lock(t, addr, append(strings.Fields(line), "--wait", "5s", "--", "echo", "in")...))
			}
			for _, p := range waiters {
				require.Equal(t, 75, p.end(t))
				require.Empty(t, p.stdout.String())
			}
			for _, line := range tt.still {
				require.Zero(t, lock(t, addr, append(strings.Fields(line), "--try", "--", "true")...).end(t), line)
			}
			for _, p := range holders {
				require.Zero(t, p.end(t))
			}
			requireNothingLeft(t, client)
		})
	}
}

func TestUsage_wrong(t *testing.T) {
	t.Parallel()
	short := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(short, []byte("short"), 0o600))
	for line, says := range map[string]string{
		"lock":                                      "want NAME -- CMD",
		"lock -- true":                              "want NAME -- CMD",
		"lock a --":                                 "want NAME -- CMD",
		"lock a b -- true":                          "2 names: several take --all",
		"lock a --shared -n 2 -- true":              "want one of them at most",
		"lock a --shared --all -- true":             "want one of them at most",
		"lock a -n 0 -- true":                       "-n is 0, want 1 to 1024",
		"lock a -n 2000 -- true":                    "-n is 2000, want 1 to 1024",
		"lock a -n x -- true":                       "invalid argument",
		"lock a --wait soon -- true":                "invalid argument",
		"lock a --wait 0s -- true":                  "--wait is 0s, want more than 0s",
		"lock a --try --wait 1s -- true":            "want one of them at most",
		"lock a --era 40000 -- true":                "--era is 40000, want 0 to 32767",
		"lock a -o xml -- true":                     `--output is "xml", want table or json`,
		"lock a --endpoints , -- true":              "--endpoints has an empty address",
		"lock a --dial-timeout 0s -- true":          "--dial-timeout is 0s",
		"lock a --cert x -- true":                   "--cert and --key: one is empty",
		"lock a --cacert /no/file -- true":          "--cacert, --cert and --key: open /no/file",
		"lock a --password-file x -- true":          "--password-file without --user",
		"lock a --user a --password-file x -- true": "--password-file: open x",
		"lock a//b -- true":                         "contains",
		"lock --all a b/~c -- true":                 "a part that begins with",
		"lock job touch file":                       "want NAME -- CMD",
		"lock --what job -- true":                   "-what",
		"lock --ttl 1s job -- true":                 "--ttl is 1s, want 2s or more",
		"lock --grace 3s job -- true":               "--grace is 3s, want 0s to a fifth of --ttl, 2s",
		"lock --user root job -- true":              "--user without a password",
		"elect job":                                 "want NAME -- CMD",
		"elect a b -- true":                         "2 names, want one",
		"elect a//b -- true":                        "contains",
		"elect a --ttl 1s -- true":                  "--ttl is 1s",
		"ui a b":                                    "accepts between 0 and 1 arg",
		"ui --every 1ms":                            "--every is 1ms, want 100ms or more",
		"ui --listen x":                             "--listen: ",
		"ui --audit /no/file":                       "--audit: open /no/file",
		"ui --token-file /no/file":                  "--token-file: open /no/file",
		"ui --token-file " + short:                  "has 5 bytes, want 16 or more",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(line)
			p := start(t, "127.0.0.1:1", words...) // there is no etcd to ask
			require.Equal(t, 64, p.end(t))
			require.Contains(t, p.stderr.String(), says)
			require.Contains(t, p.stderr.String(), "usage: leasefence "+words[0]+" ")
		})
	}
}

// A command under a nested leasefence has only the token of the inner lock.
func TestLock_nested(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	p := lock(t, addr, "a", "--shared", "--", program, "lock", "b", "--", "sh", "-c", `env | grep -E "^LEASEFENCE_(TOKEN|LOCK|KEY|SHARED)=" | sort`)
	require.Zero(t, p.end(t))
	require.Regexp(t, "^LEASEFENCE_KEY=b/.*\nLEASEFENCE_LOCK=b\nLEASEFENCE_TOKEN=3\n$", p.stdout.String())
	requireNothingLeft(t, client)
}

func TestLock_era(t *testing.T) {
	t.Parallel()
	addr, _ := etcd(t)
	p := lock(t, addr, "a", "--era", "1", "--", "sh", "-c", `echo $LEASEFENCE_TOKEN`)
	require.Zero(t, p.end(t))
	require.Equal(t, "281474976710658\n", p.stdout.String())
}
