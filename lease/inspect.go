package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// Class says how a contender uses a name.
type Class string

// The classes, as the keys tell them.
const (
	ClassExclusive Class = "exclusive" // a lock, leader or candidate; a tree's node or a set's name that is held alone
	ClassReader    Class = "reader"    // a read lock, or a node above the locked one
	ClassSlot      Class = "slot"      // a permit, or a waiter for one
	// ClassOther and ClassBeside stand for classes of later versions: those that exclude readers, and those that do
	// not.
	ClassOther  Class = "other"
	ClassBeside Class = "beside"
)

// Contender is a holder or a waiter as others see it: a key in etcd.
type Contender struct {
	Key string
	// Owner is the text for people in the key, at most 4 KiB; the value of a leader or candidate. List leaves it empty.
	Owner string
	Class Class
	// Revision is the create revision of Key: the fencing token, if the holder's session has era 0.
	Revision int64
	Lease    clientv3.LeaseID
	// TTL is the time left of the lease as the server counts, in whole seconds, rounded down; also 0 if the lease has
	// just gone. Only Inspect fills it in.
	TTL time.Duration
}

// Queue holds the holders and the waiters of a name, each in the order of their revisions.
//
// Holders are the first contender or, if that is a reader, all readers before the first contender that excludes them.
// The holders of a semaphore are those of its slots. Its waiters are those that wait for a permit, and those that stand
// behind the holder of a slot, as after etcdctl lock name/~slot/2. A lock of the semaphore's name, once first in that
// queue, is a holder beside the permits; but etcd's own locks wait for the permits. Key shows where a contender stands.
//
// A node of a tree has a queue of its own, whose name is spelled as in the keys: that of "a/b" is "a/~b".
type Queue struct {
	Name             string
	Holders, Waiters []Contender
}

// Inspect returns who holds the lock called name and who waits for it. Both lists are empty for an unused name. The
// name is the full one, with the session's prefix if it has one; that of a node of a tree is "a/~b", that of a slot
// "a/~slot/2".
//
// All contenders are as of one revision, no older than the call. The TTLs are read after that, each lease once, a few
// at a time. Keys that are no contenders, such as one without a lease, are skipped. Values of nested names are not
// read.
//
// Failures that may pass are retried until ctx ends; the error then wraps ctx's cause. Other failures, such as a denied
// permission, are returned and wrap etcd's error. Inspect needs read permission on the name's keys.
func Inspect(ctx context.Context, client *clientv3.Client, name string) (Queue, error) {
	if err := checkInspected(client, name); err != nil {
		return Queue{}, err
	}
	conn := etcd.Of(client)
	q, err := standing(ctx, conn, name)
	if err == nil {
		err = q.readTTLs(ctx, conn)
	}
	if err != nil {
		return Queue{}, fmt.Errorf("lease: inspect %q: %w", name, err)
	}
	return q, nil
}

// checkInspected refuses a bad client and a name that no queue can have.
func checkInspected(client *clientv3.Client, name string) error {
	if err := etcd.CheckClient(client); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	if err := queue.CheckQueueName(name); err != nil {
		return fmt.Errorf("lease: name %w", err)
	}
	return nil
}

const (
	// inspectAttempt bounds the first attempt of a read, see etcd.Conn.Do.
	inspectAttempt = 2 * time.Second
	// mostTTLs bounds the concurrent requests for TTLs.
	mostTTLs = 4
)

// standing reads the queue of a name as it is now, without the TTLs.
func standing(ctx context.Context, conn *etcd.Conn, name string) (q Queue, err error) {
	err = conn.Do(ctx, inspectAttempt, func(a *etcd.Attempt) error {
		kvs, _, err := queue.Standing(a, name+"/", true, false)
		q = arrange(name, seeAll(kvs))
		return err
	})
	return q, err
}

// sight is a contender with what else its key tells.
type sight struct {
	Contender

	form queue.Form
	in   string // the prefix of its queue: the name's, or a slot's
}

// see reads a contender from a key, whose value may be left out. It reports false if the key does not have the form of
// one.
func see(kv *mvccpb.KeyValue) (s sight, ok bool) {
	form, ok := queue.FormOf(kv.Key)
	if !ok {
		return s, false
	}
	key := string(kv.Key)
	s = sight{form: form, in: key[:strings.LastIndexByte(key, '/')+1], Contender: Contender{
		Key: key, Owner: ownerIn(kv), Class: ClassExclusive, Revision: kv.CreateRevision, Lease: form.Lease,
	}}
	switch {
	case form.Slot:
		s.Class = ClassSlot
	case form.Class == "r":
		s.Class = ClassReader
	case form.Class != "" && form.Excludes():
		s.Class = ClassOther
	case form.Class != "":
		s.Class = ClassBeside
	}
	return s, true
}

func seeAll(kvs []*mvccpb.KeyValue) []sight {
	all := make([]sight, 0, len(kvs))
	for _, kv := range kvs {
		if s, ok := see(kv); ok {
			all = append(all, s)
		}
	}
	return all
}

// arrange sorts the contenders of a name into holders and waiters. It sorts all.
func arrange(name string, all []sight) Queue {
	q := Queue{Name: name}
	slices.SortFunc(all, func(a, b sight) int { return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Key, b.Key)) })
	type ahead struct{ any, excluding bool }
	before := make(map[string]ahead)
	permits := false // older ones were seen
	for _, s := range all {
		b := before[s.in]
		_, slot := queue.SlotOf(s.in)
		holds := !b.any
		switch {
		case slot:
			permits = true
		case s.form.Slot: // in the turnstile: it leaves that with its permit
			holds = false
		case s.Class == ClassReader:
			holds = !b.excluding
		case s.form.Bare:
			holds = holds && !permits
		}
		before[s.in] = ahead{true, b.excluding || s.form.Excludes()}
		if holds {
			q.Holders = append(q.Holders, s.Contender)
		} else {
			q.Waiters = append(q.Waiters, s.Contender)
		}
	}
	return q
}

// readTTLs reads the time left of the leases, each once.
func (q *Queue) readTTLs(ctx context.Context, conn *etcd.Conn) error {
	of := make(map[clientv3.LeaseID][]*Contender)
	for _, list := range [...][]Contender{q.Holders, q.Waiters} {
		for i := range list {
			of[list[i].Lease] = append(of[list[i].Lease], &list[i])
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var why error
	var first sync.Once
	var wg sync.WaitGroup
	room := make(chan struct{}, mostTTLs)
	for id, contenders := range of {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			left, _, err := timeLeft(ctx, conn, id)
			for _, c := range contenders {
				c.TTL = left
			}
			if err != nil {
				first.Do(func() { why = err })
				stop()
			}
		})
	}
	wg.Wait()
	return why
}

// timeLeft reads the time left of a lease; known is false if the server does not know the lease.
func timeLeft(ctx context.Context, conn *etcd.Conn, id clientv3.LeaseID) (left time.Duration, known bool, err error) {
	err = conn.Do(ctx, inspectAttempt, func(a *etcd.Attempt) error {
		resp, err := timeToLive(a, conn.Client, id)
		if err == nil {
			left, known = max(0, time.Duration(resp.TTL)*time.Second), resp.GrantedTTL > 0
		}
		return err
	})
	return left, known, err
}

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
