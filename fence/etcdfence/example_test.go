package etcdfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// A write depends on a lock in the same etcd. After the lock is released the server refuses it.
func ExampleNewKV() {
	ctx := context.Background()
	client, stop := connect() // clientv3.New
	defer stop()
	session, err := lease.NewSession(ctx, client, lease.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx) //nolint:errcheck // the lease would expire otherwise

	lock, err := session.Lock(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	kv, err := etcdfence.NewKV(client, lock)
	if err != nil {
		log.Fatal(err)
	}
	_, err = kv.Put(ctx, "report/latest", "42 pages")
	fmt.Println("while held:", err)

	if err := lock.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = kv.Put(ctx, "report/latest", "of a holder that woke up late")
	fmt.Println("after that, stale:", errors.Is(err, fence.ErrStale))

	latest, err := kv.Get(ctx, "report/latest")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(latest.Kvs[0].Value))
	// Output:
	// while held: <nil>
	// after that, stale: true
	// 42 pages
}

// The holders' locks are in another cluster. The mark in the data's cluster decides whose writes are too late. The
// caller's own comparisons choose between Then and Else as usual. Neither runs if the token is stale.
func ExampleMarks() {
	client, stop := connect() // of the data's cluster
	defer stop()
	marks, err := etcdfence.NewMarks(client, etcdfence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	kv, err := marks.KV("stock")
	if err != nil {
		log.Fatal(err)
	}
	paused := fence.NewContext(context.Background(), 41) // a lock's context carries its token
	successor := fence.NewContext(context.Background(), 54)
	sell := func(ctx context.Context) {
		resp, err := kv.Txn(ctx).
			If(clientv3.Compare(clientv3.Value("stock/apples"), "=", "1")).
			Then(clientv3.OpPut("stock/apples", "0")).
			Else(clientv3.OpPut("stock/empty", "")).
			Commit()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("sold:", resp.Succeeded)
	}

	_, err = kv.Put(paused, "stock/apples", "1")
	fmt.Println("first:", err)
	fmt.Println("successor claims:", marks.Claim(successor, "stock"))
	sell(paused)
	sell(successor)
	sell(successor)
	// Output:
	// first: <nil>
	// successor claims: <nil>
	// fence: stale token 41 for "stock": highest seen is 54
	// sold: true
	// sold: false
}

// connect stands for clientv3.New.
func connect() (client *clientv3.Client, stop func()) {
	srv := fakeetcd.New()
	return srv.Client(context.Background()), srv.Close
}
