package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

const (
	// List reads at most firstListed keys in its first page and at most mostListed in each further one, and about
	// listedBytes of names.
	firstListed = 128
	mostListed  = 5000
	listedBytes = 1 << 20
	// smallLease is below every lease ID that etcd or this package chooses.
	smallLease = 1 << 32
)

// List yields the queues whose names begin with prefix, in the order of their keys: nested names come before the name
// above. The empty prefix means all. A node of a tree is a queue of its own. A semaphore is one queue with its slots;
// if its name does not begin with prefix, each slot that does is a queue. On an error, List yields it with an empty
// queue, and ends.
//
// List reads the names of keys alone, in pages, so neither their number nor the size of their values loads etcd or
// memory much. Therefore Owner and TTL are empty, Lease is what the key's name says, and a key that somebody planted in
// the form of a contender's is listed; [Inspect] checks the leases. Keys of other forms are skipped, and so are those
// that name a lease below 2^32, as neither etcd nor a session chooses one.
//
// All queues are as of one revision, that of the first page. If that revision is compacted meanwhile, the rest is as of
// the time when it is read. Failures that may pass are retried until ctx ends. List needs read permission on all keys
// that begin with prefix.
func List(ctx context.Context, client *clientv3.Client, prefix string) iter.Seq2[Queue, error] {
	return func(yield func(Queue, error) bool) {
		err := checkListed(client, prefix)
		if err == nil {
			l := listing{prefix: prefix, yield: func(q Queue) bool { return yield(q, nil) }}
			if err = l.run(ctx, etcd.Of(client)); err == nil {
				return
			}
			err = fmt.Errorf("lease: list %q: %w", prefix, err)
		}
		yield(Queue{}, err)
	}
}

func checkListed(client *clientv3.Client, prefix string) error {
	err := etcd.CheckClient(client)
	switch {
	case err != nil:
		return fmt.Errorf("lease: %w", err)
	case len(prefix) > queue.MaxFullName:
		return fmt.Errorf("lease: prefix has %d bytes, want 0 to %d", len(prefix), queue.MaxFullName)
	case !utf8.ValidString(prefix) || strings.ContainsRune(prefix, 0):
		return fmt.Errorf("lease: prefix is %q, want UTF-8 without NUL", prefix)
	}
	return nil
}

// listing is one use of List. The keys of nested names lie between those of the name above, so a queue stays open until
// its range of keys is passed.
type listing struct {
	prefix string
	yield  func(Queue) bool
	open   []opened // each nested in the one before
}

type opened struct {
	name string
	all  []sight
}

// run reads the keys. The error is also nil if the consumer stops.
func (l *listing) run(ctx context.Context, conn *etcd.Conn) error {
	key, end := cmp.Or(l.prefix, "\x00"), clientv3.GetPrefixRangeEnd(l.prefix)
	rev := int64(0)
	for page := int64(firstListed); ; {
		var resp *clientv3.GetResponse
		err := conn.Do(ctx, inspectAttempt, func(a *etcd.Attempt) (err error) {
			opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(page)}
			resp, err = a.Get(key, append(opts, clientv3.WithRev(rev))...)
			if errors.Is(err, rpctypes.ErrCompacted) {
				rev = 0
				resp, err = a.Get(key, opts...)
			}
			return err
		})
		if err != nil {
			return err
		}
		rev = cmp.Or(rev, resp.Header.Revision)
		longest := 64
		for _, kv := range resp.Kvs {
			longest = max(longest, len(kv.Key))
			if !l.pass(string(kv.Key)) {
				return nil
			}
			l.take(kv)
		}
		if !resp.More {
			l.pass("")
			return nil
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		page = min(16*page, mostListed, max(firstListed, int64(listedBytes/longest)))
	}
}

// pass yields the queues whose range ends before key. It reports whether the consumer wants more.
func (l *listing) pass(key string) bool {
	for len(l.open) > 0 {
		last := l.open[len(l.open)-1]
		if strings.HasPrefix(key, last.name+"/") {
			return true
		}
		l.open = l.open[:len(l.open)-1]
		if !l.yield(arrange(last.name, last.all)) {
			return false
		}
	}
	return true
}

// take adds a key to its queue, which it opens if necessary.
func (l *listing) take(kv *mvccpb.KeyValue) {
	s, ok := see(kv)
	if !ok || uint64(s.Lease) < smallLease {
		return
	}
	name := strings.TrimSuffix(s.in, "/")
	if turnstile, slot := queue.SlotOf(name + "/"); slot && len(turnstile) > len(l.prefix) {
		name = strings.TrimSuffix(turnstile, "/")
	}
	if !strings.HasPrefix(name, l.prefix) || queue.CheckQueueName(name) != nil {
		return
	}
	// The open queues all enclose the key, the longest name most closely. A semaphore may have to be opened after a
	// queue "name/~slot" inside it.
	i := len(l.open)
	for i > 0 && len(l.open[i-1].name) > len(name) {
		i--
	}
	if i == 0 || l.open[i-1].name != name {
		l.open = slices.Insert(l.open, i, opened{name: name})
		i++
	}
	l.open[i-1].all = append(l.open[i-1].all, s)
}
