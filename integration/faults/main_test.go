package faults_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// bounded returns a context that ends a test which hangs.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// put stores key in a new goroutine and returns the channel that receives the result.
func put(ctx context.Context, client *clientv3.Client, key string) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := client.Put(ctx, key, "value")
		result <- err
	}()
	return result
}
