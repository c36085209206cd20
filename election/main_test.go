package election_test

import (
	"os"
	"testing"

	"github.com/leasefence/leasefence/internal/clock"
)

// Tests run in bubbles: a goroutine that one leaves behind makes it fail.
func TestMain(m *testing.M) {
	// The host's boot clock runs on while a bubble's stands still, by which deadlines would come out early.
	clock.System = clock.Clock{}
	os.Exit(m.Run())
}
