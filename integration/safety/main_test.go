package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func testdata(name string) string { return filepath.Join("check", "testdata", name+".jsonl") }

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestCheck_good(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, dispatch([]string{"check", testdata("good-late-refused")}, &out))
	require.Regexp(t, `(?m)^ +2 granted: lock$`, out.String())
	require.Regexp(t, `(?m)^ +0 requests of unknown outcome$`, out.String(), "a check that had nothing to compare is listed too")
	require.Contains(t, out.String(), "violations: 0\n")
	// A run that was killed leaves a history whose last line is incomplete.
	require.NoError(t, dispatch([]string{"check", write(t, "{\"kind\":\"note\"}\n{\"ki")}, &out))
}

func TestCheck_violation(t *testing.T) {
	var out bytes.Buffer
	require.ErrorIs(t, dispatch([]string{"check", testdata("I1-stale-accepted")}, &out), errFailed)
	require.Contains(t, out.String(), "violations: 1\nI1 a: write with token 2 was accepted after token 3 (by resource)\n")
	require.Contains(t, out.String(), `"kind":"apply"`, "the events that show it")
}

func TestDispatch_refuses(t *testing.T) {
	const usage = "usage: safety check FILE | trace FILE"
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, usage},
		{[]string{"trace"}, usage},
		{[]string{"look", testdata("good-killed")}, usage},
		{[]string{"check", testdata("good-killed"), testdata("good-killed")}, usage},
		{[]string{"check", "none"}, "none: history: open none:"},
		{[]string{"check", write(t, "")}, "history.jsonl: no events"},
		{[]string{"check", write(t, "history\n")}, "history.jsonl: history: event 1: invalid character"},
		{[]string{"trace", write(t, "{\"kind\":\"note\",\"when\":1}\n")}, `history.jsonl: history: event 1: json: unknown field "when"`},
	} {
		err := dispatch(tc.args, &bytes.Buffer{})
		require.ErrorContains(t, err, tc.want, "%v", tc.args)
		require.NotErrorIs(t, err, errFailed)
	}
}

// What no run can have written is a violation too.
func TestCheck_impossibleHistory(t *testing.T) {
	for name, text := range map[string]string{
		"unknown kind":        "{\"kind\":\"nothing\"}\n",
		"grant without enter": "{\"kind\":\"grant\",\"op\":1,\"token\":\"2\"}\n",
		"two enters":          "{\"kind\":\"enter\",\"op\":1}\n{\"kind\":\"enter\",\"op\":1}\n",
		"two ends":            "{\"kind\":\"enter\",\"op\":1}\n{\"kind\":\"giveup\",\"op\":1}\n{\"kind\":\"giveup\",\"op\":1}\n",
		"sent twice":          "{\"kind\":\"send\",\"request\":1}\n{\"kind\":\"send\",\"request\":1}\n",
		"heal without fault":  "{\"kind\":\"heal\",\"fault\":1}\n",
		"never healed":        "{\"kind\":\"fault\",\"fault\":1}\n{\"kind\":\"note\",\"name\":\"end\"}\n",
		"TTL":                 "{\"kind\":\"note\",\"name\":\"ttl\",\"value\":\"2\"}\n",
		"watch began late":    "{\"kind\":\"delete\",\"key\":\"a/1\",\"revision\":4}\n",
		"watch missed":        "{\"kind\":\"put\",\"key\":\"a/1\",\"revision\":4,\"created\":3}\n",
		"no order":            "{\"kind\":\"send\",\"name\":\"a\",\"token\":\"1\"}\n{\"at\":2,\"kind\":\"apply\",\"name\":\"a\",\"outcome\":\"ok\",\"token\":\"1\"}\n{\"at\":1,\"kind\":\"apply\",\"name\":\"a\",\"outcome\":\"ok\",\"token\":\"1\"}\n",
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.ErrorIs(t, dispatch([]string{"check", write(t, text)}, &out), errFailed)
			require.Contains(t, out.String(), "\nhistory ")
		})
	}
}

// A trace shows until when the first client held the lock, who held it next, and which write was refused.
func TestTrace(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, dispatch([]string{"trace", testdata("good-late-refused")}, &out))
	var trace struct{ TraceEvents []traced }
	require.NoError(t, json.Unmarshal(out.Bytes(), &trace))
	names := map[int]string{}
	var rows []string
	for _, e := range trace.TraceEvents {
		if e.Phase == "M" {
			names[e.Thread] = fmt.Sprint(e.Args.(map[string]any)["name"]) //nolint:forcetypeassert // a test may panic
			continue
		}
		rows = append(rows, fmt.Sprintf("%s: %s %s at %v", names[e.Thread], e.Phase, e.Name, e.At))
	}
	require.Equal(t, []string{
		"client 1/worker 1: B waits for a at 1000",
		"client 1/worker 1: E  at 5000",
		"client 1/worker 1: B holds a at 5000",
		"client 2/worker 1: B waits for a at 60000",
		"client 1/worker 1: i claim a: ok at 11000",
		"client 1/worker 1: E  at 1.9e+06",
		"client 2/worker 1: E  at 2.101e+06",
		"client 2/worker 1: B holds a at 2.101e+06",
		"client 1/worker 1: i claim a: ok at 2.112e+06",
		"client 1/worker 1: i write a: refused at 2.12e+06",
		"client 2/worker 1: E  at 2.13e+06",
	}, rows)
	require.NoError(t, dispatch([]string{"trace", testdata("good-killed")}, &out))
	require.Contains(t, out.String(), `"name":"client killed client 1"`)
}
