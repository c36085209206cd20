//go:build unix

package command_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
