package security_test

import (
	"strings"
	"testing"
	"time"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	// shortTTL is for leases that are to be lost by their deadline, after they were held for a while on a busy machine.
	shortTTL = 4 * time.Second
	// longTTL is for those that are to be renewed, a few times in a test.
	longTTL = 6 * time.Second
)

// second drops an answer that a test does not need.
func second[T any](_ T, err error) error { return err }

// contains reports whether an error's text has another in it.
func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
