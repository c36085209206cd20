//nolint:errcheck // deferred closing in examples: what could not be closed expires by itself
package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// A function that must not run twice at the same time, and the resource that refuses a holder that was paused for too
// long.
func Example() {
	client := connect() // clientv3.New(clientv3.Config{Endpoints: …})
	defer client.Close()
	ctx := context.Background()

	session, err := lease.NewSession(ctx, client, lease.Options{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)

	var accounts fence.Guard // at the resource
	write := func(token fence.Token, what string) error {
		if err := accounts.Check("accounts", token); err != nil {
			return err
		}
		fmt.Println("wrote", what)
		return nil
	}

	var paused fence.Token
	err = session.Do(ctx, "accounts", func(_ context.Context, token fence.Token) error {
		if err := accounts.Claim("accounts", token); err != nil {
			return err
		}
		paused = token
		return write(token, "first")
	})
	if err != nil {
		log.Fatal(err)
	}
	err = session.Do(ctx, "accounts", func(_ context.Context, token fence.Token) error {
		return write(token, "second")
	})
	if err != nil {
		log.Fatal(err)
	}

	// The first holder's last write was stuck in the network until now.
	err = write(paused, "too late")
	fmt.Println("stale:", errors.Is(err, fence.ErrStale))
	// Output:
	// wrote first
	// wrote second
	// stale: true
}

// Readers of a catalogue read at the same time, but not while it is written. A writer that was paused for too long is
// refused once a later reader has claimed.
func ExampleSession_RDo() {
	ctx, _, session := startUp(lease.Options{})
	defer session.Close(ctx)

	var catalogue fence.Guard // at the resource
	var paused fence.Token
	err := session.Do(ctx, "catalogue", func(_ context.Context, token fence.Token) error {
		paused = token
		return catalogue.Claim("catalogue", token)
	})
	if err != nil {
		log.Fatal(err)
	}
	err = session.RDo(ctx, "catalogue", func(ctx context.Context, token fence.ReadToken) error {
		if err := catalogue.ClaimRead("catalogue", token); err != nil {
			return err
		}
		other, err := session.TryRLock(ctx, "catalogue")
		if err != nil {
			return err
		}
		fmt.Println("two readers at a time")
		return errors.Join(catalogue.CheckRead("catalogue", other.Token()), other.Unlock(ctx))
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stale:", errors.Is(catalogue.Check("catalogue", paused), fence.ErrStale))
	// Output:
	// two readers at a time
	// stale: true
}

// A transfer between two accounts needs both locks. A transfer that names them in the other order does not deadlock,
// and one token goes with the writes to both.
func ExampleSession_DoAll() {
	ctx, _, session := startUp(lease.Options{Prefix: "accounts/"})
	defer session.Close(ctx)

	var accounts fence.Guard // at the resource
	err := session.DoAll(ctx, []string{"alice", "bob"}, func(_ context.Context, token fence.Token) error {
		for _, name := range []string{"alice", "bob"} {
			if err := accounts.Claim(name, token); err != nil {
				return err
			}
		}
		fmt.Println("one token:", accounts.Marks()["alice"] == accounts.Marks()["bob"])
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: one token: true
}

// Two jobs work in different folders at the same time. A clean-up of all of "data" waits for both.
func ExampleSession_LockTree() {
	ctx, _, session := startUp(lease.Options{})
	defer session.Close(ctx)

	for _, folder := range []string{"data/2026/10", "data/2026/11"} {
		if _, err := session.LockTree(ctx, folder); err != nil {
			log.Fatal(err)
		}
	}
	_, err := session.TryLockTree(ctx, "data")
	var locked *lease.LockedError
	fmt.Println(errors.As(err, &locked), locked.Name)
	// Output: true data
}

// At most three exports run at a time, on whatever machines. Each has a slot, which is also the name of the resource
// that refuses an earlier holder of the same slot.
func ExampleSession_DoPermit() {
	ctx, _, session := startUp(lease.Options{})
	defer session.Close(ctx)

	var scratch fence.Guard // at the resource
	err := session.DoPermit(ctx, "exports", 3, func(ctx context.Context, token fence.Token) error {
		permit, _ := lease.PermitFromContext(ctx)
		if err := scratch.Claim(permit.Name(), token); err != nil {
			return err
		}
		fmt.Println("one of three:", permit.Slot() >= 0 && permit.Slot() < 3)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: one of three: true
}

// Do gives the function a context that ends when the lock is lost, and releases the lock after the function has
// returned.
func ExampleSession_Do() {
	ctx, _, session := startUp(lease.Options{Prefix: "jobs/"})
	defer session.Close(ctx)

	err := session.Do(ctx, "report", func(ctx context.Context, _ fence.Token) error {
		for page := 1; page <= 3; page++ {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			fmt.Println("page", page)
		}
		return nil
	})
	fmt.Println("error:", err)
	// Output:
	// page 1
	// page 2
	// page 3
	// error: <nil>
}

// Under two locks at once, name the lock whose token a resource needs. Otherwise the context carries the inner lock's
// token, and the outer lock's resource refuses that.
func ExampleSession_Do_nested() {
	ctx, _, session := startUp(lease.Options{})
	var guard fence.Guard // at the resource
	write := func(ctx context.Context) {
		token, _ := fence.FromContext(ctx)
		fmt.Println(guard.CheckContext(ctx, "accounts", token))
	}
	err := session.Do(ctx, "accounts", func(ctx context.Context, _ fence.Token) error {
		write(ctx)
		return session.Do(ctx, "report", func(ctx context.Context, _ fence.Token) error {
			write(ctx)
			write(fence.ForLock(ctx, "accounts"))
			return nil
		})
	})
	fmt.Println(errors.Join(err, session.Close(ctx)))
	// Output:
	// <nil>
	// fence: token of another lock: 3 of lock "report" for "accounts", which follows lock "accounts"
	// <nil>
	// <nil>
}

// WithMaxHold cancels the work; the lock is released when the function has returned.
func ExampleWithMaxHold() {
	ctx, _, session := startUp(lease.Options{})
	defer session.Close(ctx)

	err := session.Do(ctx, "report", func(ctx context.Context, _ fence.Token) error {
		<-ctx.Done() // a query that takes too long
		return nil
	}, lease.WithMaxHold(20*time.Millisecond))
	fmt.Println("too long:", errors.Is(err, lease.ErrMaxHold))
	// Output: too long: true
}

func ExampleSession_Lock() {
	ctx, _, session := startUp(lease.Options{})
	defer session.Close(ctx)

	wait, cancel := context.WithTimeout(ctx, 5*time.Second) // the wait, not the hold
	lock, err := session.Lock(wait, "accounts/42")
	cancel()
	if err != nil {
		log.Fatal(err)
	}
	// Work under the handle's context, and give the token to the resource with every write.
	token, _ := fence.FromContext(lock.Context())
	fmt.Println("held:", lock.Context().Err() == nil, token == lock.Token())

	if err := lock.Unlock(ctx); err != nil { // ErrLost if the lock was lost
		log.Fatal(err)
	}
	fmt.Println(context.Cause(lock.Context()))
	// Output:
	// held: true true
	// lease: unlocked
}

func ExampleSession_TryLock() {
	ctx, _, session := startUp(lease.Options{Owner: "billing-1"})
	defer session.Close(ctx)

	lock, err := session.TryLock(ctx, "invoices")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	_, err = session.TryLock(ctx, "invoices")
	if locked, ok := errors.AsType[*lease.LockedError](err); ok {
		fmt.Println("held by", locked.Owner)
	}
	// Output: held by billing-1
}

// A handler that starts a job unless the job is already running somewhere.
func ExampleSession_TryDo() {
	ctx, _, session := startUp(lease.Options{})
	defer session.Close(ctx)
	handle := func() string {
		err := session.TryDo(ctx, "reindex", func(_ context.Context, _ fence.Token) error {
			return nil // the job, with that context
		})
		switch {
		case errors.Is(err, lease.ErrLocked):
			return "409 Conflict"
		case err != nil:
			return "500 Internal Server Error"
		}
		return "200 OK"
	}

	elsewhere, err := session.Lock(ctx, "reindex")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(handle())
	if err := elsewhere.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(handle())
	// Output:
	// 409 Conflict
	// 200 OK
}

// The reason of a loss: here an operator has deleted the lock's key.
func ExampleLock_Context() {
	ctx, client, session := startUp(lease.Options{})
	defer session.Close(ctx)
	lock, err := session.Lock(ctx, "leader")
	if err != nil {
		log.Fatal(err)
	}

	if _, err := client.Delete(ctx, lock.Key()); err != nil {
		log.Fatal(err)
	}
	<-lock.Context().Done()

	cause := context.Cause(lock.Context())
	if lost, ok := errors.AsType[*lease.LostError](cause); ok {
		fmt.Println("lost:", lost.Reason)
	}
	fmt.Println("reported again:", errors.Is(lock.Unlock(ctx), lease.ErrLost))
	// Output:
	// lost: the key was deleted by somebody else
	// reported again: true
}

// If the resource is etcd itself, the transaction that writes can check the lock.
func ExampleLock_IsOwner() {
	ctx, client, session := startUp(lease.Options{})
	defer session.Close(ctx)
	lock, err := session.Lock(ctx, "config")
	if err != nil {
		log.Fatal(err)
	}
	write := func(value string) {
		resp, err := client.Txn(ctx).If(lock.IsOwner()).Then(clientv3.OpPut("/config", value)).Commit()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(value, resp.Succeeded)
	}
	write("new")
	if err := lock.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	write("too late")
	// Output:
	// new true
	// too late false
}

// A service that reports the state of its lease.
func ExampleSession_Changes() {
	ctx, _, session := startUp(lease.Options{TTL: 10 * time.Second})
	for status := range session.Changes(ctx) {
		fmt.Println(status.State, status.TTL, errors.Is(status.Err, lease.ErrClosed))
		if status.State == lease.StateHeld {
			go session.Close(ctx)
		}
	}
	// Output:
	// held 10s false
	// lost 10s true
}

// Locks on the lease of a concurrency.Session, while a program moves from etcd's package to this one.
func ExampleAdopt() {
	client := connect()
	defer client.Close()
	ctx := context.Background()
	theirs, err := concurrency.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer theirs.Close()
	session, err := lease.Adopt(ctx, client, theirs.Lease(), lease.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx) // leaves the lease to its owner

	lock, err := session.Lock(ctx, "a")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)
	err = concurrency.NewMutex(theirs, "a").TryLock(ctx)
	fmt.Println(errors.Is(err, concurrency.ErrLocked))
	// Output: true
}

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
