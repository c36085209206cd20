package s3fence_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
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

// A manifest makes many objects change as one: write the parts under new keys, and then swap the fenced object that lists
// them. A reader reads the manifest and then the parts. The parts of a holder that was refused stay unlisted.
func ExampleBucket_Update_manifest() {
	client := connect()
	bucket, err := s3fence.NewBucket(client, "data", s3fence.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := fence.NewContext(context.Background(), 54)
	if err := bucket.Claim(ctx, "table"); err != nil {
		log.Fatal(err)
	}
	keys := []string{"table.parts/rows-" + rand.Text(), "table.parts/index-" + rand.Text()}
	for i, content := range []string{"a b c", "3 rows"} {
		_, err := client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: aws.String("data"), Key: &keys[i], Body: strings.NewReader(content),
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	err = bucket.Update(ctx, "table", func([]byte) ([]byte, error) { return json.Marshal(keys) })
	fmt.Println("committed:", err)

	stale := fence.NewContext(context.Background(), 41)
	err = bucket.Update(stale, "table", func([]byte) ([]byte, error) { return nil, nil })
	fmt.Println("stop this tenure:", errors.Is(err, fence.ErrStale))

	manifest, err := bucket.Get(context.Background(), "table")
	if err != nil {
		log.Fatal(err)
	}
	var listed []string
	if err := json.Unmarshal(manifest.Payload, &listed); err != nil {
		log.Fatal(err)
	}
	for _, key := range listed {
		part, err := client.GetObject(context.Background(), &s3.GetObjectInput{Bucket: aws.String("data"), Key: &key})
		if err != nil {
			log.Fatal(err)
		}
		content, err := io.ReadAll(part.Body)
		fmt.Println(string(content), errors.Join(err, part.Body.Close()))
	}
	// Output:
	// committed: <nil>
	// stop this tenure: true
	// a b c <nil>
	// 3 rows <nil>
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
