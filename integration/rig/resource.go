package rig

import (
	"context"
	"errors"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
)

// Resource is a value in etcd to which each holder writes its token. It is the witness that counts: whoever was live when,
// its history tells who wrote last.
type Resource struct {
	// Key is where the value is.
	Key string
	// Fenced says that writes carry the mark of [etcdfence.Marks]. One that is not is the control.
	Fenced bool
}

// Claim begins a tenure by way of a client.
func (r Resource) Claim(ctx context.Context, client *clientv3.Client, token fence.Token) error {
	if !r.Fenced {
		return nil
	}
	kv, err := r.kv(client)
	if err != nil {
		return err
	}
	return kv.(*etcdfence.KV).Claim(fence.NewContext(ctx, token))
}

// Write writes the token by way of a client. It is sent once.
func (r Resource) Write(ctx context.Context, client *clientv3.Client, token fence.Token) error {
	kv, err := r.kv(client)
	if err != nil {
		return err
	}
	_, err = kv.Put(fence.NewContext(ctx, token), r.Key, strconv.FormatInt(int64(token), 10))
	return err
}

// Work is a tenure: a claim and a write. What fails for the moment is tried again until ctx ends; a token that is refused is not.
func (r Resource) Work(ctx context.Context, client *clientv3.Client, token fence.Token) error {
	for _, do := range []func(context.Context, *clientv3.Client, fence.Token) error{r.Claim, r.Write} {
		for {
			err := do(ctx, client, token)
			if err == nil {
				break
			}
			if errors.Is(err, fence.ErrStale) || ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

func (r Resource) kv(client *clientv3.Client) (clientv3.KV, error) {
	if !r.Fenced {
		return client, nil
	}
	marks, err := etcdfence.NewMarks(client, etcdfence.Options{})
	if err != nil {
		return nil, err
	}
	return marks.KV(r.Key)
}

// History is every token that was written, in order.
func (r Resource) History(tb testing.TB, client *clientv3.Client) []fence.Token {
	tb.Helper()
	ctx, cancel := context.WithCancel(Bounded(tb))
	defer cancel()
	now, err := client.Get(ctx, r.Key)
	if err != nil {
		tb.Fatalf("rig: %v", err)
	}
	if len(now.Kvs) == 0 {
		return nil
	}
	var tokens []fence.Token
	for resp := range client.Watch(ctx, r.Key, clientv3.WithRev(1)) {
		if err := resp.Err(); err != nil {
			tb.Fatalf("rig: %v", err)
		}
		for _, ev := range resp.Events {
			token, err := strconv.ParseInt(string(ev.Kv.Value), 10, 64)
			if err != nil {
				tb.Fatalf("rig: %v", err)
			}
			tokens = append(tokens, fence.Token(token))
			if ev.Kv.ModRevision >= now.Kvs[0].ModRevision {
				return tokens
			}
		}
	}
	tb.Fatalf("rig: the history of %q has not been told: %v", r.Key, ctx.Err())
	return nil
}

// Regressions is how often a lower token was accepted after a higher one.
func (r Resource) Regressions(tb testing.TB, client *clientv3.Client) int {
	tb.Helper()
	n := 0
	var highest fence.Token
	for _, token := range r.History(tb, client) {
		if token < highest {
			n++
		}
		highest = max(highest, token)
	}
	return n
}
