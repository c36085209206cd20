//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, ".") }

// line is one of the timeline.
type line struct {
	millis    int
	id        string
	pid       int // 0: it is no process of the service
	token     int
	text      string
	remaining string // what comes after it
}

// timelineOf is all lines of the timeline that say what the pattern says.
func timelineOf(t *testing.T, text, pattern string) []line {
	t.Helper()
	p := regexp.MustCompile(`^ *(\d+)\.(\d{3})s  (\w+)(?: (\d+))? +(\d*)  (.*)$`)
	what := regexp.MustCompile(`^(?:` + pattern + `)`)
	var all []line
	for rest := text; rest != ""; {
		var first string
		first, rest, _ = strings.Cut(rest, "\n")
		m := p.FindStringSubmatch(first)
		if m == nil || !what.MatchString(m[6]) {
			continue
		}
		all = append(all, line{exampletest.Number(t, m[1]+m[2]), m[3], exampletest.Number(t, "0"+m[4]), exampletest.Number(t, "0"+m[5]), m[6], rest})
	}
	return all
}

// requireNoneLeft says that every process that was started has ended.
func requireNoneLeft(t *testing.T, text string, n int) {
	t.Helper()
	pids := map[int]bool{}
	for _, l := range timelineOf(t, text, "campaigns") {
		pids[l.pid] = true
	}
	require.Len(t, pids, n)
	for pid := range pids {
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "process %d is still there", pid)
	}
}

// get asks a process.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	return request(t, http.MethodGet, url)
}

func request(t *testing.T, method, url string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// awaitLeader asks a process until it says who leads.
func awaitLeader(t *testing.T, url, answer string) {
	t.Helper()
	var last string
	require.Eventually(t, func() bool {
		_, last = get(t, url+"/leader")
		return last == answer
	}, exampletest.Patience, 10*time.Millisecond, "want %s", answer)
}
