package redisfence_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"
)

// noSkipEnv is set where everything that tests need is installed, as in CI: there a test must not be skipped.
const noSkipEnv = "LEASEFENCE_NO_SKIP"

// shared is the server of all tests that neither stop nor configure it; nil if none is installed.
var shared *server

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	switch _, missing := exec.LookPath(redisServer); {
	case missing == nil:
		if shared, err = start("--maxmemory-policy", "noeviction"); err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, shared.stop()) }()
	case os.Getenv(noSkipEnv) != "":
		return 1, fmt.Errorf("tests would be skipped, and %s is set: %w", noSkipEnv, missing)
	default: // an example cannot skip itself
		if err := flag.Set("test.skip", "^Example"); err != nil {
			return 1, err
		}
	}
	if code = m.Run(); code == 0 {
		err = goleak.Find()
	}
	return code, err
}
