//go:build unix

package etcdproc_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

func TestMain(m *testing.M) {
	etcdproc.Serve()
	goleak.VerifyTestMain(m)
}
