package etcdtest

import (
	"os"
	"testing"
)

// noSkipEnv is set where all that tests need is installed, as in CI: a test that would be skipped there is an error.
const noSkipEnv = "LEASEFENCE_NO_SKIP"

// Skip skips a test that needs something this machine lacks. If LEASEFENCE_NO_SKIP is set, it fails the test instead.
func Skip(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv(noSkipEnv) != "" {
		tb.Fatalf("would be skipped, and "+noSkipEnv+" is set: "+format, args...)
	}
	tb.Skipf(format, args...) //nolint:forbidigo // This is the helper that the rule demands.
}
