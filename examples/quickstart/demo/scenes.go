//go:build unix

package main

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/examples/internal/stage"
)

const (
	goesToWrite = "goes to write"
	goOn        = "go on" // the line that lets a process write; a stopped process reads it when it continues
)

// quickstart is the play.
type quickstart struct{ *stage.Stage }

func play(s *stage.Stage) {
	q := quickstart{s}

	q.Begin("Two processes start; A asks for the lock first")
	q.start("A", 1)
	q.start("B", 2)
	q.ready("A", 1)
	first := q.Await("A", stage.Locks)

	q.Begin("A holds the lock, writes, and is paused right before it writes again")
	q.Write("A", goOn)
	q.Wrote(first)
	q.ready("A", 2)
	q.Pause("A")
	q.Write("A", goOn) // from now on only the pause keeps A from its write

	q.Begin("B takes over")
	second := q.TakeOver("B")
	q.ready("B", 2)
	q.Write("B", goOn)
	q.Wrote(second)

	q.Begin("A continues and sends its write; B still holds the lock")
	q.WakeUp("A", first)
	q.Await("A", stage.LockIsLost)
	q.EndOf("A")

	q.Begin("B goes on, and releases the lock")
	q.Write("B", goOn)
	q.Await("B", stage.Unlocks)
	q.EndOf("B")
}

// start starts a process, and waits until n processes are in the lock's queue.
func (q quickstart) start(id string, n int64) {
	q.Start(id, "asks for the lock", "-worker", id, "-etcd", q.Endpoint(), "-ledger", q.Ledger)
	q.Until(fmt.Sprintf("%d are in the queue", n), func(ctx context.Context) (bool, error) {
		resp, err := q.Client.Get(ctx, lockName+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count == n, err
	})
}

// ready waits until a process is about to write the entry with a number.
func (q quickstart) ready(id string, seq int) {
	q.AwaitSince(0, fmt.Sprintf("%s to be about to write #%d", id, seq), func(e stage.Event) bool {
		entry, _ := e.More["entry"].(string)
		return e.Is(id, goesToWrite) && strings.HasPrefix(entry, fmt.Sprintf("#%d ", seq))
	})
}
