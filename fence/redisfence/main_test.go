package redisfence_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"
)

// noSkipEnv is set where everything that tests need is installed, as in CI: there a test must not be skipped.
const noSkipEnv = "LEASEFENCE_NO_SKIP"

// skip skips a test because something is not installed, or fails it if LEASEFENCE_NO_SKIP is set.
func skip(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv(noSkipEnv) != "" {
		tb.Fatalf("would be skipped, and "+noSkipEnv+" is set: "+format, args...)
	}
	tb.Skipf(format, args...) //nolint:forbidigo // This is the helper that the rule asks for.
}

func TestMain(m *testing.M) {
	flag.Parse()
	// An example cannot skip itself.
	if _, err := exec.LookPath(redisServer); err != nil && os.Getenv(noSkipEnv) == "" {
		if err := flag.Set("test.skip", "^Example"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "redis-server:", err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
