package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// asProgram is an environment variable. If it is set, the test's binary runs as the program.
const asProgram = "LEASEFENCE_SAFETY_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	etcdtest.Main(m)
}

// program runs the program with arguments.
func program(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		failed, ok := errors.AsType[*exec.ExitError](err)
		require.True(t, ok, "%v", err)
		code = failed.ExitCode()
	}
	return code, stdout.String(), stderr.String()
}

func testdata(name string) string { return filepath.Join("check", "testdata", name+".jsonl") }

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestCheck_good(t *testing.T) {
	code, out, errs := program(t, "check", testdata("good-late-refused"))
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	require.Regexp(t, `(?m)^  granted +2$`, out)
	require.Regexp(t, `(?m)^  refused as stale +1$`, out)
	require.Regexp(t, `(?m)^  updates applied +0$`, out, "a check that had nothing to compare is listed too")
	require.Regexp(t, `(?m)^violations +0$`, out)
}

func TestCheck_violation(t *testing.T) {
	code, out, errs := program(t, "check", testdata("I1-stale-accepted"))
	require.Equal(t, 1, code)
	require.Equal(t, "safety: the history violates an invariant\n", errs)
	require.Regexp(t, `(?m)^violations +1$`, out)
	require.Contains(t, out, "I1 a: write with token 2 was accepted after token 3 (by resource)\n")
	require.Contains(t, out, `"kind":"apply"`, "the events that show it")
}

func TestCheck_badFile(t *testing.T) {
	for name, path := range map[string]string{
		"missing":             filepath.Join(t.TempDir(), "none"),
		"empty":               write(t, ""),
		"no JSON":             write(t, "history\n"),
		"unknown field":       write(t, "{\"kind\":\"note\",\"when\":1}\n"),
		"unknown kind":        write(t, "{\"kind\":\"nothing\"}\n"),
		"grant without enter": write(t, "{\"kind\":\"grant\",\"op\":1,\"token\":\"2\"}\n"),
		"two enters":          write(t, "{\"kind\":\"enter\",\"op\":1}\n{\"kind\":\"enter\",\"op\":1}\n"),
		"two ends":            write(t, "{\"kind\":\"enter\",\"op\":1}\n{\"kind\":\"giveup\",\"op\":1}\n{\"kind\":\"giveup\",\"op\":1}\n"),
		"sent twice":          write(t, "{\"kind\":\"send\",\"request\":1}\n{\"kind\":\"send\",\"request\":1}\n"),
		"heal without fault":  write(t, "{\"kind\":\"heal\",\"fault\":1}\n"),
		"TTL":                 write(t, "{\"kind\":\"note\",\"name\":\"ttl\",\"value\":\"2\"}\n"),
		"watch began late":    write(t, "{\"kind\":\"delete\",\"key\":\"a/1\",\"revision\":4}\n"),
		"watch missed":        write(t, "{\"kind\":\"put\",\"key\":\"a/1\",\"revision\":4,\"created\":3}\n"),
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errs := program(t, "check", path)
			require.Equal(t, 2, code)
			require.Regexp(t, `^safety: read .+\n$`, errs)
		})
	}
}

// A run that was killed leaves a history whose last line is incomplete.
func TestCheck_cutShort(t *testing.T) {
	code, _, errs := program(t, "check", write(t, "{\"kind\":\"note\"}\n{\"ki"))
	require.Zero(t, code, errs)
}

// A trace shows until when the first client held the lock, who held it next, and which write was refused.
func TestTrace(t *testing.T) {
	code, out, errs := program(t, "trace", testdata("good-late-refused"))
	require.Zero(t, code, errs)
	var trace struct{ TraceEvents []traced }
	require.NoError(t, json.Unmarshal([]byte(out), &trace))
	names := map[int]string{}
	var rows []string
	for _, e := range trace.TraceEvents {
		args := e.Args.(map[string]any) //nolint:forcetypeassert // a test may panic
		if e.Phase == "M" {
			names[e.Thread] = fmt.Sprint(args["name"])
			continue
		}
		rows = append(rows, fmt.Sprintf("%s %s: %v+%v", names[e.Thread], e.Name, e.At, e.Lasts))
	}
	require.Equal(t, []string{
		"client 1/worker 1 waits for a: 1000+4000",
		"client 1/worker 1 claim a: ok: 11000+0",
		"client 1/worker 1 holds a: 5000+1.895e+06",
		"client 2/worker 1 waits for a: 60000+2.041e+06",
		"client 1/worker 1 claim a: ok: 2.112e+06+0",
		"client 1/worker 1 write a: refused: 2.12e+06+0",
		"client 2/worker 1 holds a: 2.101e+06+29000",
	}, rows)

	code, out, _ = program(t, "trace", testdata("good-killed"))
	require.Zero(t, code)
	require.Contains(t, out, `"name":"client killed client 1"`)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"look"}, {"check"}, {"check", "a", "b"}, {"trace"},
	} {
		code, _, errs := program(t, args...)
		require.Equal(t, 2, code, "%v", args)
		for _, c := range commands {
			require.Contains(t, errs, "safety "+c.name)
		}
	}
}
