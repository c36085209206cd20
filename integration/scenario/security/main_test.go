package security_test

import (
	"testing"
	"time"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	// shortTTL is for leases that a test loses by their deadline. A busy machine must still manage to hold them for a
	// while.
	shortTTL = 4 * time.Second
	// longTTL is for leases that are renewed a few times in a test.
	longTTL = 6 * time.Second
)

// second drops the first of two results.
func second[T any](_ T, err error) error { return err }
