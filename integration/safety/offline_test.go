package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// asProgram in the environment makes the test's binary the program itself.
const asProgram = "LEASEFENCE_SAFETY_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	etcdtest.Main(m)
}

// program runs it with arguments.
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
	require.Regexp(t, `(?m)^  updates applied +0$`, out, "what was not looked at is told")
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

// Flags may stand behind the file, and go before what the history notes.
func TestCheck_flags(t *testing.T) {
	path := testdata("I7-after-a-heal")
	code, _, _ := program(t, "check", path)
	require.Equal(t, 1, code)
	code, _, errs := program(t, "check", path, "-ttl", "10s")
	require.Zero(t, code, errs)
	code, out, _ := program(t, "check", "-prefix", "elsewhere/", testdata("good-touching"))
	require.Equal(t, 1, code)
	require.Contains(t, out, "I2 a: token 2 is not the create revision of a key of")
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

// A run that was killed leaves a history whose last line is not whole.
func TestCheck_cutShort(t *testing.T) {
	code, _, errs := program(t, "check", write(t, "{\"kind\":\"note\"}\n{\"ki"))
	require.Zero(t, code, errs)
}

func TestDraw_writesAPicture(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "out.svg")
	code, _, errs := program(t, "draw", testdata("good-late-refused"), "-o", picture, "-from", "1s", "-to", "3s", "-names", "a,b")
	require.Zero(t, code, errs)
	page, err := os.ReadFile(picture)
	require.NoError(t, err)
	require.Contains(t, string(page), "token 3")
}

// A picture that cannot be drawn leaves no file.
func TestDraw_fails(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "out.svg")
	code, _, errs := program(t, "draw", testdata("good-late-refused"), "-o", picture, "-names", "z")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "nothing to draw")
	require.NoFileExists(t, picture)
	code, _, _ = program(t, "draw", write(t, "no"), "-o", picture)
	require.Equal(t, 2, code)
	require.NoFileExists(t, picture)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"look"}, {"check"}, {"check", "a", "b"}, {"check", "-x", "a"}, {"draw", testdata("good-late-refused")}, {"draw", "-o", "x"},
	} {
		code, _, errs := program(t, args...)
		require.Equal(t, 2, code, "%v", args)
		for _, c := range commands {
			require.Contains(t, errs, "safety "+c.name)
		}
	}
}
