package lease_test

import (
	"context"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// connect stands for clientv3.New in the examples: it returns a client of an etcd in memory, so that they run.
func connect() *clientv3.Client {
	return fakeetcd.New().Client(context.Background())
}

// startUp makes a client and a session, as the package's example does.
func startUp(opts lease.Options) (context.Context, *clientv3.Client, *lease.Session) {
	ctx, client := context.Background(), connect()
	session, err := lease.NewSession(ctx, client, opts)
	if err != nil {
		log.Fatal(err)
	}
	return ctx, client, session
}
