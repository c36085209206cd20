//go:build unix

package command_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// With a user, the client asks etcd before the command does.
func TestDown_withAUser(t *testing.T) {
	t.Parallel()
	for line, code := range map[string]int{"ls": 1, "get a": 1, "doctor": 1, "lock a --ttl 2s -- true": 75} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(line)
			args = append(args[:1:1], append([]string{"--dial-timeout", "500ms", "--user", "root:secret"}, args[1:]...)...)
			p := start(t, "127.0.0.1:1", args...)
			require.Equal(t, code, p.end(t))
			require.Contains(t, p.stderr.String(), `etcd at ["127.0.0.1:1"] has not answered for`)
		})
	}
}

// Nothing hangs where etcd does not answer, and each command says so.
func TestDown_everyCommandSaysSo(t *testing.T) {
	t.Parallel()
	for line, code := range map[string]int{
		"ls":                                    1,
		"get a":                                 1,
		"watch a":                               1,
		"release a --yes --token 3":             1,
		"release a --mode wait --yes --token 3": 1,
		"explain 3":                             1,
		"lock a --ttl 2s -- true":               75,
		"lock a --ttl 2s --try -- true":         75,
		"elect a --ttl 2s -- true":              75,
		"lock a -o json --ttl 2s -- true":       75,
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(line)
			args = append(args[:1:1], append([]string{"--command-timeout", "500ms"}, args[1:]...)...)
			p := start(t, "127.0.0.1:1", args...)
			require.Equal(t, code, p.end(t))
			require.Regexp(t, `etcd at \[\\?"127.0.0.1:1\\?"\] has not answered for`, p.stderr.String())
			require.Empty(t, p.stdout.String())
		})
	}
}
