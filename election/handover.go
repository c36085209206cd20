package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/scope"
)

// The order of the queue is that of the create revisions, for everybody, and so are the tokens: nobody can be put before
// another. But a leader may hand over to a candidate that is not next. In the transaction in which it leaves, it deletes the
// keys of the candidates between, and each of those enters again at the end.

// choice says whom a leader hands over to.
type choice struct {
	// value is that of the first candidate that is meant, one of etcd's own election package included. If it is empty, the
	// first candidate of the highest priority is meant, if that is above above.
	value string
	above int
}

// heir is the candidate that is to follow a leader, and the candidates between the two.
type heir struct {
	next    queue.Entry
	between []queue.Entry
}

// blockedError is ErrBlocked, with the contender that keeps its place.
type blockedError struct{ by queue.Entry }

func (e *blockedError) Error() string {
	const most = 200 // bytes of a key that somebody else has written
	return fmt.Sprintf("%v: key %q", ErrBlocked, e.by.Key[:min(len(e.by.Key), most)])
}

func (e *blockedError) Unwrap() error { return ErrBlocked }

// waitsFor reports whether the choice can be handed over to: nil, or the error of follow.
func (l *Leadership) waitsFor(ctx context.Context, c choice) error {
	ctx, cancel := scope.Join(ctx, l.ctx)
	defer cancel()
	_, err := l.follow(ctx, c)
	return err
}

// follow finds the candidate that is chosen. The error matches ErrNoCandidate, or is a *blockedError. Those that enter later
// stand behind the heir.
func (l *Leadership) follow(ctx context.Context, c choice) (heir, error) {
	var kvs []*mvccpb.KeyValue
	e := l.hold.Entry
	_, err := l.hold.While(ctx, func(a *etcd.Attempt) error {
		keys, _, err := queue.Children(a, e.Prefix, clientv3.WithMinCreateRev(e.Rev+1))
		if err != nil || c.value == "" && highest(e.Prefix, keys) <= c.above {
			return err
		}
		kvs, err = queue.Contenders(a, keys, false)
		return err
	})
	if err != nil {
		return heir{}, err
	}
	return c.among(e.Prefix, kvs)
}

// highest is the highest priority of keys, -1 if none is a candidate's.
func highest(prefix string, keys []*mvccpb.KeyValue) int {
	most := -1
	for _, kv := range keys {
		if priority, candidate := priorityOf(prefix, kv.Key); candidate {
			most = max(most, priority)
		}
	}
	return most
}

// among finds the heir in a queue without its leader, oldest first.
func (c choice) among(prefix string, kvs []*mvccpb.KeyValue) (heir, error) {
	var h heir
	var passed []queue.Entry
	var blocker *blockedError
	above := c.above
	for _, kv := range kvs {
		priority, candidate := priorityOf(prefix, kv.Key)
		wanted := candidate && priority > above
		if c.value != "" {
			wanted = queue.Text(kv) == c.value && h.next.Rev == 0 && (candidate || etcds(prefix, kv))
		}
		entry := queue.Entry{Prefix: prefix, Key: string(kv.Key), Lease: clientv3.LeaseID(kv.Lease), Rev: kv.CreateRevision}
		switch {
		case wanted && blocker == nil:
			h.next, h.between, above = entry, slices.Clip(passed), priority
		case wanted && h.next.Rev == 0:
			return heir{}, blocker
		}
		switch {
		case candidate:
			passed = append(passed, entry)
		case blocker == nil:
			blocker = &blockedError{by: entry}
		}
	}
	if h.next.Rev == 0 {
		return heir{}, ErrNoCandidate
	}
	return h, nil
}

// etcds reports whether a contender may be a candidate of etcd's own election package: its key is the lease's ID alone, as
// that of etcd's own locks is, which have no value.
func etcds(prefix string, kv *mvccpb.KeyValue) bool {
	return string(kv.Key[len(prefix):]) == strconv.FormatInt(kv.Lease, 16)
}

// handOver deletes the leader's key, and those of the candidates between, so that the deletion is the turn of the one that is
// chosen. If it is not, missed is why.
func (l *Leadership) handOver(ctx context.Context, to choice) (deleted bool, missed, err error) {
	for {
		h, missed := l.follow(ctx, to)
		if missed != nil {
			return false, missed, nil
		}
		var gone bool
		late, err := l.hold.While(ctx, func(a *etcd.Attempt) (err error) {
			deleted, gone, missed, err = leaveTo(a, l.hold.Entry, h)
			return err
		})
		switch {
		case err != nil || deleted || late && gone:
			return deleted || late, missed, err
		case gone: // or taken off its lease: the next one leads by now
			return false, ErrNoCandidate, nil
		}
		// The chosen one has left meanwhile, or was passed and has entered again: it is looked for once more.
	}
}

// leaveTo deletes e's key and those between it and the heir, if e's is still e's, while the heir stands: then it is the
// heir's turn, with nobody in between. While etcd is out of space it deletes e's key alone, and missed says why the heir may not be
// next. Otherwise it reports whether e is gone, and e's key is as it was. It is one attempt. Repeating it is safe, since all of it
// depends on e's key, but where an answer was lost, "e is gone" may mean that it was done before.
func leaveTo(a *etcd.Attempt, e queue.Entry, h heir) (done, gone bool, missed, err error) {
	// A key that somebody has taken off its lease keeps its revision, but it contends no more: another one leads.
	// For the heir that does not matter: whoever is next leads.
	both := []clientv3.Cmp{
		e.Held(), clientv3.Compare(clientv3.LeaseValue(e.Key), "=", e.Lease),
		h.next.Held(),
	}
	do := func(ops ...clientv3.Op) error {
		resp, err := a.Txn(both, ops, []clientv3.Op{clientv3.OpGet(e.Key)})
		if err != nil || resp.Succeeded {
			return err
		}
		kv := first(resp.Responses[0].GetResponseRange().Kvs)
		gone, missed = kv == nil || kv.CreateRevision != e.Rev || kv.Lease != int64(e.Lease), nil
		return errNotDone
	}
	if len(h.between) > 0 {
		// Whoever waits for e's key takes its end for its turn, unless the key was written: see queue.AwaitOwn.
		err = do(rewrite(e.Key))
		if errors.Is(err, rpctypes.ErrNoSpace) { // then keys can be deleted, but not written
			h.between, missed, err = nil, err, nil
		}
	}
	if err == nil {
		// Many are deleted in several transactions, e's key in the last of them: until then e leads the queue.
		_, err = etcd.InParts(append(slices.Clip(h.between), e), etcd.PartSize, 1, func(part []queue.Entry) error {
			ops := make([]clientv3.Op, len(part))
			for i, b := range part {
				ops[i] = clientv3.OpTxn([]clientv3.Cmp{b.Held()}, []clientv3.Op{clientv3.OpDelete(b.Key)}, nil)
			}
			err := do(ops...)
			done = err == nil && part[len(part)-1].Key == e.Key
			return err
		})
	}
	if errors.Is(err, errNotDone) {
		err = nil
	}
	return done, gone, missed, err
}

// rewrite writes a key without a change.
func rewrite(key string) clientv3.Op {
	return clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
}

var errNotDone = errors.New("election: not done")
