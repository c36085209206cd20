package s3fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/s3fence"
)

// connect stands for s3.NewFromConfig.
func connect() *s3.Client { return newClient(new(memory).RoundTrip) }

// A holder is paused for longer than its lease. Its successor claims the object before reading it. When the first
// holder wakes up and writes, the write is refused.
func Example() {
	bucket, err := s3fence.NewBucket(connect(), "data", s3fence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	paused := fence.NewContext(context.Background(), 41) // a lock's context carries its token
	successor := fence.NewContext(context.Background(), 54)

	fmt.Println("first:", bucket.Put(paused, "report", []byte("draft")))

	if err := bucket.Claim(successor, "report"); err != nil {
		log.Fatal(err)
	}
	err = bucket.Update(successor, "report", func(old []byte) ([]byte, error) {
		return append(old, ", reviewed"...), nil
	})
	fmt.Println("successor:", err)

	fmt.Println("first, late:", bucket.Put(paused, "report", []byte("draft 2")))
	report, err := bucket.Get(context.Background(), "report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, by %d\n", report.Payload, report.Token)
	// Output:
	// first: <nil>
	// successor: <nil>
	// first, late: fence: stale token 41 for "data/report": highest seen is 54
	// draft, reviewed, by 54
}

// Two objects change as one.
func ExampleManifest_Commit() {
	bucket, err := s3fence.NewBucket(connect(), "data", s3fence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	table, err := bucket.Manifest("table")
	if err != nil {
		log.Fatal(err)
	}
	ctx := fence.NewContext(context.Background(), 54)
	if err := table.Claim(ctx); err != nil {
		log.Fatal(err)
	}
	err = table.Commit(ctx, s3fence.Changes{Put: map[string][]byte{
		"rows":  []byte("a b c"),
		"index": []byte("3 rows"),
	}})
	if err != nil {
		log.Fatal(err)
	}

	now, err := table.Read(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"rows", "index"} {
		payload, err := now.Get(context.Background(), name)
		fmt.Printf("%s: %s %v\n", name, payload, err)
	}

	stale := fence.NewContext(context.Background(), 41)
	err = table.Commit(stale, s3fence.Changes{Delete: []string{"index"}})
	fmt.Println("stop this tenure:", errors.Is(err, fence.ErrStale))
	// Output:
	// rows: a b c <nil>
	// index: 3 rows <nil>
	// stop this tenure: true
}

// Put has four outcomes: written, stale, unknown (the answer was lost and others have written since), and not written.
func ExampleBucket_Put() {
	bucket, err := s3fence.NewBucket(connect(), "data", s3fence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := fence.NewContext(context.Background(), 54)
	switch err := bucket.Put(ctx, "report", []byte("final")); {
	case errors.Is(err, fence.ErrStale):
		fmt.Println("the lock is lost: stop")
	case errors.Is(err, s3fence.ErrUnknown):
		fmt.Println("written or not: settle it with Update")
	case err != nil:
		fmt.Println("not written:", err)
	default:
		fmt.Println("written")
	}

	err = bucket.Put(context.Background(), "report", nil)
	fmt.Println("without a token:", errors.Is(err, fence.ErrInvalidToken))
	// Output:
	// written
	// without a token: true
}
