package etcdfence_test

import (
	"os"
	"testing"

	"github.com/leasefence/leasefence/internal/clock"
)

func TestMain(m *testing.M) {
	clock.System = clock.Clock{} // that of the bubbles that tests run in
	os.Exit(m.Run())
}
