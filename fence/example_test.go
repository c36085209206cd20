package fence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"

	"github.com/leasefence/leasefence/fence"
)

// A holder is paused for longer than its lease. Its successor claims the resource before it reads it, and the resource
// refuses the write that the first holder sends when it wakes up.
func Example() {
	var guard fence.Guard // at the resource
	stock := 10

	sell := func(ctx context.Context, n int) error {
		token, ok := fence.FromContext(ctx)
		if !ok {
			return fence.ErrInvalidToken
		}
		return guard.DoContext(ctx, "stock", token, func() error {
			stock -= n
			return nil
		})
	}

	paused := fence.NewContext(context.Background(), 41) // a lock's context carries its token
	successor := fence.NewContext(context.Background(), 54)

	fmt.Println("first:", sell(paused, 1))
	if err := guard.Claim("stock", 54); err != nil {
		log.Fatal(err)
	}
	fmt.Println("successor:", sell(successor, 2))
	fmt.Println("first, late:", sell(paused, 5))
	fmt.Println("stock:", stock)
	// Output:
	// first: <nil>
	// successor: <nil>
	// first, late: fence: stale token 41 for "stock": highest seen is 54
	// stock: 7
}

func ExampleGuard_Do() {
	var guard fence.Guard
	if err := guard.Claim("orders", 54); err != nil {
		log.Fatal(err)
	}

	err := guard.Do("orders", 41, func() error {
		fmt.Println("not reached")
		return nil
	})
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		fmt.Printf("%s: %d came after %d\n", stale.Resource, stale.Highest, stale.Token)
	}
	fmt.Println("stop this tenure:", errors.Is(err, fence.ErrStale))
	// Output:
	// orders: 54 came after 41
	// stop this tenure: true
}

// The marks outlive a restart. Inside Do the new mark is there before the write, so it can be saved first.
func ExampleGuard_Load() {
	var saved []byte // a file, say

	var before fence.Guard
	err := before.Do("orders", 54, func() (err error) {
		if saved, err = json.Marshal(before.Marks()); err != nil {
			return err
		}
		return nil // and now the write
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(saved))

	var after fence.Guard
	var marks map[string]fence.Token
	if err := json.Unmarshal(saved, &marks); err != nil {
		log.Fatal(err)
	}
	if err := after.Load(marks); err != nil {
		log.Fatal(err)
	}
	fmt.Println(after.Check("orders", 41))
	// Output:
	// {"orders":"54"}
	// fence: stale token 41 for "orders": highest seen is 54
}

// After etcd was restored from a snapshot, revisions start lower. In a raised era the tokens are still larger.
func ExampleNewToken() {
	before, err := fence.NewToken(0, 54)
	if err != nil {
		log.Fatal(err)
	}
	after, err := fence.NewToken(1, 4)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(before, before.Text())
	fmt.Println(after, after.Text())
	fmt.Println("later:", after > before)
	// Output:
	// 54 0:54
	// 281474976710660 1:4
	// later: true
}
