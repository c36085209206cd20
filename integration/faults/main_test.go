package faults_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// put stores key in a new goroutine and returns the channel that receives the result.
func put(ctx context.Context, client *clientv3.Client, key string) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := client.Put(ctx, key, "value")
		result <- err
	}()
	return result
}
