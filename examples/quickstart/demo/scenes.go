//go:build unix

package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/examples/internal/stage"
)

const goesToWrite = "goes to write"

// quickstart is what happens, scene by scene.
type quickstart struct {
	*stage.Stage
	a, b stage.Event // when they got the lock
}

func play(ctx context.Context, s *stage.Stage) error {
	q := &quickstart{Stage: s}
	for _, scene := range []func(context.Context) error{q.contend, q.pause, q.takeOver, q.wakeUp, q.finish} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

// contend has A take the lock, and B wait for it.
func (q *quickstart) contend(ctx context.Context) error {
	for i, id := range []string{"A", "B"} {
		if _, err := q.Start(ctx, id, "asks for the lock", "-worker", id, "-etcd", q.Endpoint(), "-ledger", q.Ledger); err != nil {
			return err
		}
		if err := q.queued(ctx, i+1); err != nil {
			return err
		}
	}
	return q.ready(ctx, "A", 1)
}

// queued waits until n processes stand in the lock's queue.
func (q *quickstart) queued(ctx context.Context, n int) error {
	return q.Until(ctx, fmt.Sprintf("%d are in the queue", n), func(ctx context.Context) (bool, error) {
		resp, err := q.Client.Get(ctx, lockName+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count == int64(n), err
	})
}

// ready waits until a process is about to write the entry with a number.
func (q *quickstart) ready(ctx context.Context, id string, seq int) error {
	_, err := q.Record.Await(ctx, 0, func(e stage.Event) bool {
		entry, _ := e.More["entry"].(string)
		return e.Is(id, goesToWrite) && strings.HasPrefix(entry, fmt.Sprintf("#%d ", seq))
	})
	if err != nil {
		err = fmt.Errorf("wait until %s is about to write #%d: %w", id, seq, err)
	}
	return err
}

// goOn lets a process write. One that is stopped does so when it is woken up.
func (q *quickstart) goOn(id string) error {
	_, err := fmt.Fprintln(q.Nodes[id].Stdin, "go on")
	return err
}

// pause lets A write, and stops it between its look at the lock and its next write.
func (q *quickstart) pause(ctx context.Context) (err error) {
	if q.a, err = q.Await(ctx, "A", stage.Locks); err != nil {
		return err
	}
	if err := q.Begin(ctx, "A holds the lock, writes, and is paused right before it writes again"); err != nil {
		return err
	}
	if err := q.goOn("A"); err != nil {
		return err
	}
	if err := q.Wrote(ctx, q.a); err != nil {
		return err
	}
	if err := q.ready(ctx, "A", 2); err != nil {
		return err
	}
	if err := q.Signal(q.Nodes["A"], syscall.SIGSTOP, "STOP"); err != nil {
		return err
	}
	if _, err := q.Await(ctx, "A", stage.HasStopped); err != nil {
		return err
	}
	return q.goOn("A") // from here on nothing but the pause keeps A from its write
}

// takeOver waits for the end of A's lease and lets B write.
func (q *quickstart) takeOver(ctx context.Context) (err error) {
	if err := q.Begin(ctx, "B takes over"); err != nil {
		return err
	}
	if q.b, err = q.TakeOver(ctx, "B", fmt.Sprintf("A stands still; its lease of %v is not renewed", stage.TTL)); err != nil {
		return err
	}
	if err := q.ready(ctx, "B", 2); err != nil {
		return err
	}
	if err := q.goOn("B"); err != nil {
		return err
	}
	return q.Wrote(ctx, q.b)
}

// wakeUp wakes A up and sees what becomes of its write.
func (q *quickstart) wakeUp(ctx context.Context) error {
	if err := q.Begin(ctx, "A wakes up and sends its write; B still holds the lock"); err != nil {
		return err
	}
	from := q.Record.Len()
	if err := q.Signal(q.Nodes["A"], syscall.SIGCONT, "CONT"); err != nil {
		return err
	}
	if err := q.LateWrite(ctx, from, q.a); err != nil {
		return err
	}
	if _, err := q.Await(ctx, "A", stage.LockIsLost); err != nil {
		return err
	}
	return q.EndOf(ctx, q.Nodes["A"])
}

// finish lets B write once more, and end.
func (q *quickstart) finish(ctx context.Context) error {
	if err := q.Begin(ctx, "B goes on, and releases the lock"); err != nil {
		return err
	}
	if err := q.goOn("B"); err != nil {
		return err
	}
	if _, err := q.Await(ctx, "B", stage.Unlocks); err != nil {
		return err
	}
	return q.EndOf(ctx, q.Nodes["B"])
}
