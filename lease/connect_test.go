package lease_test

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// connect stands for clientv3.New in the examples: it returns a client of an etcd in memory, so that they run.
func connect() *clientv3.Client {
	return fakeetcd.New().Client(context.Background())
}
