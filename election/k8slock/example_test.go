package k8slock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// connect stands for clientv3.New.
func connect() *clientv3.Client { return fakeetcd.New().Client(context.Background()) }

// client-go's elector on etcd. With controller-runtime, the Lock goes into manager.Options as
// LeaderElectionResourceLockInterface, and NewContext is called in Start of a Runnable.
func Example() {
	client := connect() // clientv3.New(clientv3.Config{Endpoints: …})
	defer func() { _ = client.Close() }()
	var guard fence.Guard // at the resource
	var tenures []fence.Token

	for range 2 {
		lock, err := k8slock.New(client, "jobs/nightly", k8slock.Options{})
		if err != nil {
			log.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		worked := make(chan struct{})
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock:            lock,
			LeaseDuration:   15 * time.Second,
			RenewDeadline:   10 * time.Second,
			RetryPeriod:     2 * time.Second,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					defer close(worked)
					defer stop() // the work is done, or the tenure is over: step down
					ctx, err := lock.NewContext(ctx)
					if err != nil {
						return // the tenure is over already
					}
					token, _ := fence.FromContext(ctx)
					if err := guard.Claim("report", token); err != nil {
						return
					}
					tenures = append(tenures, token)
					fmt.Println("leading, token grew:", len(tenures) == 1 || token > tenures[0])
				},
				OnStoppedLeading: func() {},
			},
		})
		<-worked // client-go does not wait for OnStartedLeading
	}

	err := guard.Check("report", tenures[0]) // a late write of the first leader
	fmt.Println("stale:", errors.Is(err, fence.ErrStale))
	// Output:
	// leading, token grew: true
	// leading, token grew: true
	// stale: true
}
