//go:build unix

package etcdproc_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

func TestMain(m *testing.M) {
	etcdproc.Serve()
	goleak.VerifyTestMain(m)
}

// bounded is a context that ends a test which hangs.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
