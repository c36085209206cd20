package etcdtest

import (
	"os"
	"testing"
)

// noSkipEnv is set where everything that tests need is installed, as in CI: what would be skipped there is broken.
const noSkipEnv = "LEASEFENCE_NO_SKIP"

// Skip skips a test for want of something on this machine, and fails it where LEASEFENCE_NO_SKIP is set.
func Skip(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv(noSkipEnv) != "" {
		tb.Fatalf("would be skipped, and "+noSkipEnv+" is set: "+format, args...)
	}
	tb.Skipf(format, args...) //nolint:forbidigo // This is the helper that the rule asks for.
}
