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

// line is a line of the demo's output.
type line struct {
	millis int
	id     string
	pid    int // 0: not of a process of the service
	token  int
	text   string
}

// timelineOf returns the lines of the output whose text begins with a match of the pattern.
func timelineOf(t *testing.T, text, pattern string) []line {
	t.Helper()
	p := regexp.MustCompile(`^ *(\d+)\.(\d{3})s  (\w+)(?: (\d+))? +(\d*)  (.*)$`)
	what := regexp.MustCompile(`^(?:` + pattern + `)`)
	var all []line
	for l := range strings.Lines(text) {
		m := p.FindStringSubmatch(strings.TrimSuffix(l, "\n"))
		if m == nil || !what.MatchString(m[6]) {
			continue
		}
		all = append(all, line{exampletest.Number(t, m[1]+m[2]), m[3], exampletest.Number(t, "0"+m[4]), exampletest.Number(t, "0"+m[5]), m[6]})
	}
	return all
}

// requireNoneLeft checks that every one of the n processes that were started has ended.
func requireNoneLeft(t *testing.T, text string, n int) {
	t.Helper()
	pids := map[int]bool{}
	for _, l := range timelineOf(t, text, "campaigns") {
		pids[l.pid] = true
	}
	require.Len(t, pids, n)
	for pid := range pids {
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "process %d still exists", pid)
	}
}

// get sends a GET request to a process.
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

// awaitLeader asks a process for the leader until it gives the answer.
func awaitLeader(t *testing.T, url, answer string) {
	t.Helper()
	var last string
	require.Eventually(t, func() bool {
		_, last = get(t, url+"/leader")
		return last == answer
	}, exampletest.Patience, 10*time.Millisecond, "want %s", answer)
}
