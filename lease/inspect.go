package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
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
