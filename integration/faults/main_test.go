package faults_test

import (
	"context"
	"strings"
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

// valueSize is the size of what put stores: more than the frames that HTTP/2 sends on its own account.
const valueSize = 4 << 10

// put stores key in a goroutine of its own and returns the channel that gets the result.
func put(ctx context.Context, client *clientv3.Client, key string) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := client.Put(ctx, key, strings.Repeat("v", valueSize))
		result <- err
	}()
	return result
}
