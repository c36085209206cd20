package etcdfence_test

import (
	"os"
	"testing"

	"github.com/leasefence/leasefence/internal/clock"
)

func TestMain(m *testing.M) {
	clock.System = clock.Clock{} // the fake clock of the tests' bubbles
	os.Exit(m.Run())
}
