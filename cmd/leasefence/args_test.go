package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Invalid names and prefixes are wrong usage, before anything is sent.
func TestArgs_wrongNames(t *testing.T) {
	for _, tt := range []struct {
		says string
		args []string
	}{
		{`NAME "a//b" contains "//"`, []string{"get", "a//b"}},
		{`NAME is empty, want 1 to 1024 bytes`, []string{"watch", ""}},
		{`NAME "a/" begins or ends with "/"`, []string{"release", "a/", "--yes", "--token", "7"}},
		{`PREFIX is "\xff", want UTF-8`, []string{"ls", "\xff"}},
		{`PREFIX is "\xff", want UTF-8`, []string{"doctor", "\xff"}},
		{`PREFIX is "\xff", want UTF-8`, []string{"ui", "\xff", "--listen", "127.0.0.1:0"}},
		{`PREFIX has 2049 bytes, want 0 to 2048`, []string{"explain", "7", strings.Repeat("a", 2049)}},
		{`--all: 65 names, want 64 at most`, append(append([]string{"lock", "--all"}, manyNames(65)...), "--", "true")},
		{`accepts between 0 and 1 arg(s), received 2`, []string{"ls", "a", "b"}},
	} {
		t.Run(strings.Join(tt.args[:1], " "), func(t *testing.T) {
			var stderr bytes.Buffer
			a := newApp()
			a.out, a.stderr = &stderr, &stderr
			require.Equal(t, exitUsage, a.run(append([]string{"--endpoints", "127.0.0.1:1", "--command-timeout", "1ms"}, tt.args...)))
			require.Contains(t, stderr.String(), tt.says)
		})
	}
}

func manyNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("a/", i))
	}
	return names
}
