//go:build unix

package command_test

import (
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
				holders = append(holders, lock(t, addr, strings.Fields(line+" -- cat")...))
			}
			require.Eventually(t, func() bool { return len(keys(t, client, "")) == tt.keys }, patience, time.Millisecond)
			var refused []*running
			for _, line := range tt.out {
				for _, how := range []string{"--try", "--wait 5s"} {
					// The time includes opening the session; if --wait cut that short, its lease would be left behind.
					refused = append(refused, lock(t, addr, strings.Fields(line+" "+how+" -- echo in")...))
				}
			}
			for _, p := range refused {
				require.Equal(t, 75, p.end(t))
				require.Empty(t, p.stdout.String())
			}
			for _, line := range tt.still {
				require.Zero(t, lock(t, addr, strings.Fields(line+" --try -- true")...).end(t), line)
			}
			for _, p := range holders {
				require.Zero(t, p.end(t))
			}
			requireNothingLeft(t, client)
		})
	}
}

// A command under a nested leasefence has only the token of the inner lock. It has the lock's era. A signal that is ignored,
// as under nohup, stays ignored.
func TestLock_nested(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	p := lock(t, addr, "a", "--shared", "--", "sh", "-c", `trap "" HUP; exec "$@"`, "sh",
		program, "lock", "b", "--era", "1", "--", "sh", "-c", `kill -HUP $$; env | grep -E "^LEASEFENCE_(TOKEN|LOCK|KEY|SHARED)=" | sort`)
	require.Zero(t, p.end(t))
	require.Regexp(t, "^LEASEFENCE_KEY=b/.*\nLEASEFENCE_LOCK=b\nLEASEFENCE_TOKEN=281474976710659\n$", p.stdout.String())
	requireNothingLeft(t, client)
}
