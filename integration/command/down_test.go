//go:build unix

package command_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// If etcd does not answer, no command hangs, and each says so. With a user, etcd's client authenticates before the
// command begins.
func TestDown_everyCommandSaysSo(t *testing.T) {
	t.Parallel()
	for flags, codes := range map[string]map[string]int{
		"--command-timeout 500ms": {
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
		},
		"--dial-timeout 500ms --user root:secret": {"ls": 1, "get a": 1, "doctor": 1, "lock a --ttl 2s -- true": 75},
	} {
		for line, code := range codes {
			t.Run(line+" "+flags, func(t *testing.T) {
				t.Parallel()
				verb, rest, _ := strings.Cut(line, " ")
				p := start(t, "127.0.0.1:1", strings.Fields(verb+" "+flags+" "+rest)...)
				require.Equal(t, code, p.end(t))
				require.Regexp(t, `etcd at \[\\?"127.0.0.1:1\\?"\] has not answered for`, p.stderr.String())
				if !strings.Contains(flags, "--user") { // then etcd's client does not let anybody ask it for the reason
					require.Contains(t, p.stderr.String(), "no connection")
				}
				require.Empty(t, p.stdout.String())
			})
		}
	}
}
