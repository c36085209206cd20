package security_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	// shortTTL is for leases that are to be lost by their deadline, after they were held for a while on a busy machine.
	shortTTL = 4 * time.Second
	// longTTL is for those that are to be renewed, a few times in a test.
	longTTL = 6 * time.Second
)

// must fails the test on an error of a call whose answer does not matter.
func must(t *testing.T, _ any, err error) {
	t.Helper()
	require.NoError(t, err)
}

// contains reports whether an error's text has another in it.
func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
