package lease

import (
	"cmp"
	"context"
	"errors"
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

// Class is what a contender wants of a name.
type Class string

// The classes, as the keys tell them.
const (
	ClassExclusive Class = "exclusive" // a lock, a leader or a candidate; a node of a tree or a name of a set that is held alone
	ClassReader    Class = "reader"    // of a read lock, or of a node above the one that is locked
	ClassSlot      Class = "slot"      // a permit, or the wait for one
	// ClassOther and ClassBeside are classes of later versions: those that exclude readers, and those that do not.
	ClassOther  Class = "other"
	ClassBeside Class = "beside"
)

// Contender is a hold, or the wait for one, as others see it: a key in etcd.
type Contender struct {
	Key   string
	Owner string // the text for people in the key, of a candidate its value: at most 4 KiB. List leaves it empty
	Class Class
	// Revision is the fencing token in era 0: the create revision of Key, unless the holder's session has an era.
	Revision int64
	Lease    clientv3.LeaseID
	// TTL is what is left of the lease as the server counts, in whole seconds, rounded down; 0 also where the lease has just
	// gone. Only Inspect has it.
	TTL time.Duration
}

// Queue is who holds a name and who waits for it, each in the order of their revisions.
//
// Holders are the first contender or, where that is a reader, all readers before the first one that excludes them. Of a
// semaphore they are those of its slots. The waiters of a semaphore are those that wait for a permit, and those behind the holder
// of a slot, as after etcdctl lock name/~slot/2. A lock of the semaphore's name beside permits is a holder too, once it is the first that
// wants the name; but one of etcd's own waits for the permits. Keys tell the place.
//
// A node of a tree has a queue of its own, whose name is as it stands in the keys: that of "a/b" is "a/~b".
type Queue struct {
	Name             string
	Holders, Waiters []Contender
}

// Inspect returns who holds the lock called name and who waits for it. A name that nobody wants has neither. The name is the full
// one, with the session's prefix if it has one; that of a node of a tree is "a/~b", that of a slot "a/~slot/2".
//
// All is as it stood at one revision, no older than the call; what is left of the leases is asked for after that, a few at a time,
// each lease once. Keys that are no contenders are passed over; see the package's section on order. Values of nested names are not
// read. What fails for the moment is tried again until ctx ends; the error wraps ctx's cause then, and etcd's where trying again is
// of no use, as when permission is denied. Read permission on the name's keys is enough. It is safe for concurrent use.
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

// checkInspected refuses what cannot be a queue's.
func checkInspected(client *clientv3.Client, name string) error {
	if client == nil {
		return errors.New("lease: client is nil, want an etcd client")
	}
	if err := checkNamespace(client); err != nil {
		return err
	}
	if err := checkQueueName(name); err != nil {
		return fmt.Errorf("lease: name %w", err)
	}
	return nil
}

// checkQueueName is [queue.CheckName] for names as they stand in the keys: those of nodes and slots have parts that begin with "~".
func checkQueueName(name string) error { return queue.CheckName(strings.ReplaceAll(name, "/~", "/")) }

const (
	// inspectAttempt bounds the first attempt of a read, see etcd.Conn.Do.
	inspectAttempt = 2 * time.Second
	// mostTTLs are asked for at a time.
	mostTTLs = 4
)

// standing is the queue of a name as it is now, without the leases' TTLs.
func standing(ctx context.Context, conn *etcd.Conn, name string) (q Queue, err error) {
	err = conn.Do(ctx, inspectAttempt, func(a *etcd.Attempt) error {
		kvs, _, err := queue.Standing(a, name+"/")
		q = arrange(name, seeAll(kvs))
		return err
	})
	return q, err
}

// sight is a contender, and what its key tells besides.
type sight struct {
	Contender

	form queue.Form
	in   string // the queue in which it stands: that of the name, or of a slot
}

// see is what a key tells that has the form of a contender's, false if it has not. Its value may be left out.
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

// arrange tells who of all contenders of a name holds it. It sorts them.
func arrange(name string, all []sight) Queue {
	q := Queue{Name: name}
	slices.SortFunc(all, func(a, b sight) int { return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Key, b.Key)) })
	type ahead struct{ any, excluding bool }
	before := make(map[string]ahead)
	permits := false // that are older
	for _, s := range all {
		b := before[s.in]
		_, slot := queue.SlotOf(s.in)
		holds := !b.any
		switch {
		case slot:
			permits = true
		case s.form.Slot: // it leaves the queue with its permit
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

// readTTLs asks what is left of the leases.
func (q *Queue) readTTLs(ctx context.Context, conn *etcd.Conn) error {
	left := make(map[clientv3.LeaseID]time.Duration)
	for _, list := range [...][]Contender{q.Holders, q.Waiters} {
		for _, c := range list {
			left[c.Lease] = 0
		}
	}
	var (
		mu    sync.Mutex // guards left, why and the list
		why   error
		wg    sync.WaitGroup
		asked = make([]clientv3.LeaseID, 0, len(left))
	)
	for id := range left {
		asked = append(asked, id)
	}
	for range min(mostTTLs, len(asked)) {
		wg.Go(func() {
			for {
				mu.Lock()
				if len(asked) == 0 || why != nil {
					mu.Unlock()
					return
				}
				id := asked[0]
				asked = asked[1:]
				mu.Unlock()
				ttl, _, err := timeLeft(ctx, conn, id)
				mu.Lock()
				left[id], why = ttl, cmp.Or(why, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, list := range [...][]Contender{q.Holders, q.Waiters} {
		for i := range list {
			list[i].TTL = left[list[i].Lease]
		}
	}
	return why
}

// timeLeft asks what is left of a lease; known is false if the server knows none.
func timeLeft(ctx context.Context, conn *etcd.Conn, id clientv3.LeaseID) (left time.Duration, known bool, err error) {
	err = conn.Do(ctx, inspectAttempt, func(a *etcd.Attempt) error {
		resp, err := etcd.Send(a, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
			return conn.Client.TimeToLive(ctx, id)
		})
		if err == nil {
			left, known = max(0, time.Duration(resp.TTL)*time.Second), resp.GrantedTTL > 0
		}
		return err
	})
	return left, known, err
}
