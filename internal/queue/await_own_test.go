package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

// The owner's key and the waiter's own go in one step: the deletion of the owner's is not the waiter's turn.
func TestQueue_AwaitOwn(t *testing.T) {
	for name, passed := range map[string]bool{"passed": true, "its turn": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				owner, us := e.enter(t, "owner"), e.enter(t, "us")
				e.enter(t, "next")
				got := inBackground(e, func() (struct{}, error) {
					return struct{}{}, e.AwaitOwn(t.Context(), us.Entry, us.ahead)
				})
				e.at(time.Minute)
				requirePending(t, got)
				gone := []clientv3.Op{clientv3.OpDelete(owner.Key)}
				if passed {
					gone = append(gone, clientv3.OpDelete(us.Key))
				}
				_, err := e.c.Txn(t.Context()).Then(gone...).Commit()
				require.NoError(t, err)
				if err := receive(t, got).err; passed {
					require.ErrorIs(t, err, queue.ErrGone)
				} else {
					require.NoError(t, err)
				}
			})
		})
	}
}

func TestQueue_AwaitEnd(t *testing.T) {
	for name, end := range map[string]func(e *env, key string){
		"deleted":           func(e *env, key string) { e.srv.Delete(key) },
		"taken off a lease": func(e *env, key string) { e.srv.Put(key, "") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				other := e.enter(t, "other")
				await := func() <-chan outcome[struct{}] {
					return inBackground(e, func() (struct{}, error) { return struct{}{}, e.AwaitEnd(t.Context(), other.Entry) })
				}
				got := await()
				e.at(time.Minute)
				requirePending(t, got)
				end(e, other.Key)
				require.NoError(t, receive(t, got).err)
				require.NoError(t, receive(t, await()).err, "it has ended before")
			})
		})
	}
}
