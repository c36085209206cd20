package redisfence_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

// exampleClient connects to the shared server and empties it.
func exampleClient() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: shared.addr})
	if err := c.FlushAll(context.Background()).Err(); err != nil {
		log.Fatal(err)
	}
	return c
}

// A holder is paused for longer than its lease. Its successor claims the resource before reading it. When the first
// holder wakes up and writes, the write is refused.
func Example() {
	client := exampleClient()
	defer func() { _ = client.Close() }()
	f, err := redisfence.New(client, redisfence.Options{})
	if err != nil {
		log.Fatal(err)
	}

	paused := fence.NewContext(context.Background(), 41) // a lock's context carries its token
	successor := fence.NewContext(context.Background(), 54)

	fmt.Println("first:", f.Set(paused, "stock", "stock", 10))
	fmt.Println("successor claims:", f.Claim(successor, "stock"))
	fmt.Println("successor:", f.Set(successor, "stock", "stock", 8))
	fmt.Println("first, late:", f.Set(paused, "stock", "stock", 9))
	fmt.Println("stock:", client.Get(context.Background(), "stock").Val())
	// Output:
	// first: <nil>
	// successor claims: <nil>
	// successor: <nil>
	// first, late: fence: stale token 41 for "stock": highest seen is 54
	// stock: 8
}

func ExampleMarks_Do() {
	client := exampleClient()
	defer func() { _ = client.Close() }()
	f, err := redisfence.New(client, redisfence.Options{})
	if err != nil {
		log.Fatal(err)
	}

	ctx := fence.NewContext(context.Background(), 54)
	replies, err := f.Do(ctx, "orders",
		redisfence.Command("HSET", "{orders}:7", "state", "paid", "by", "card"),
		redisfence.Command("RPUSH", "{orders}:log", "7 paid"),
		redisfence.Command("HGET", "{orders}:7", "state"),
	)
	fmt.Println(replies, err)
	// Output:
	// [2 1 paid] <nil>
}

// The body reads, decides and writes in one step. The commands of Do cannot depend on each other's replies.
func ExampleMarks_Run() {
	client := exampleClient()
	defer func() { _ = client.Close() }()
	f, err := redisfence.New(client, redisfence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	sell := redisfence.NewScript(`
		local left = tonumber(redis.call('GET', KEYS[1]) or '0')
		if left < tonumber(ARGV[1]) then return -1 end
		return redis.call('DECRBY', KEYS[1], ARGV[1])`)

	ctx := fence.NewContext(context.Background(), 54)
	if err := f.Set(ctx, "stock", "stock", 3); err != nil {
		log.Fatal(err)
	}
	fmt.Println(f.Run(ctx, "stock", sell, []string{"stock"}, 2))
	fmt.Println(f.Run(ctx, "stock", sell, []string{"stock"}, 2))
	fmt.Println(f.Run(fence.NewContext(ctx, 41), "stock", sell, []string{"stock"}, 1))
	// Output:
	// 1 <nil>
	// -1 <nil>
	// <nil> fence: stale token 41 for "stock": highest seen is 54
}

func ExampleMarks_Probe() {
	client := exampleClient()
	defer func() { _ = client.Close() }()
	f, err := redisfence.New(client, redisfence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	found, err := f.Probe(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, finding := range found {
		fmt.Printf("%s is %s: %s\n", finding.Setting, finding.Value, finding.Effect)
	}
	// Output:
	// aof_enabled is 0: a restart restores the marks of the last snapshot or loses them: set appendonly yes
}
