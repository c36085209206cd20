package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/commit"
	"github.com/leasefence/leasefence/internal/retry"
)

// A candidate is a contender that lets another pass when it is asked to.
//
// The order of the queue is that of the create revisions, for everybody, and so are the tokens. Nobody can be put
// before another; but a candidate that waits can step back, to the end of the queue, with a new key. It is asked by a
// write to its key that changes nothing (Touch): it sees a modification later than the creation, however late it
// looks. Contenders of other kinds keep their places.
//
// The suffix of a candidate's key begins with "c", its priority and "-".

// CandidateMark is what the suffix of a candidate's key begins with.
func CandidateMark(priority int) string { return "c" + strconv.Itoa(priority) + "-" }

// priorityOf is the priority in a key below prefix; false if it is no candidate's.
func priorityOf(prefix string, key []byte) (int, bool) {
	child := strings.TrimPrefix(string(key), prefix)
	_, suffix, _ := strings.Cut(child, "-")
	mark, _, found := strings.Cut(suffix, "-")
	if !found || !strings.HasPrefix(mark, "c") || strings.Contains(child, "/") {
		return 0, false
	}
	priority, err := strconv.Atoi(mark[1:])
	return priority, err == nil
}

// touched reports whether a candidate has been asked to step back.
func touched(kv *mvccpb.KeyValue) bool { return kv.ModRevision != kv.CreateRevision }

// Overtake asks the candidates of lower priority that wait before e to let it pass. It does not wait for them. One that
// was asked to step back itself, at the revision asked, spares those who stood in the queue by then: it would undo
// what it was asked for. Otherwise asked is 0.
func (q *Queue) Overtake(ctx context.Context, e Entry, asked int64) error {
	mine, _ := priorityOf(e.Prefix, []byte(e.Key))
	var lower []*mvccpb.KeyValue
	err := retry.Do(ctx, q.Client, q.Attempt, func(ctx context.Context) error {
		resp, err := retry.Get(ctx, q.Client, e.Prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithMinCreateRev(asked), clientv3.WithMaxCreateRev(e.Rev-1), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			return err
		}
		lower = lower[:0]
		for i, kv := range resp.Kvs {
			priority, candidate := priorityOf(e.Prefix, kv.Key)
			leads := i == 0 && asked == 0
			if candidate && !leads && priority < mine && !touched(kv) {
				lower = append(lower, kv)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return q.touch(ctx, lower)
}

// touch asks candidates to step back, each once.
func (q *Queue) touch(ctx context.Context, list []*mvccpb.KeyValue) error {
	const most = 60 // two operations each, within the server's default limit of 128
	return inParts(list, most, func(part []*mvccpb.KeyValue) error {
		ops := make([]clientv3.Op, len(part))
		for i, kv := range part {
			unchanged := clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)
			touch := clientv3.OpPut(string(kv.Key), "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
			ops[i] = clientv3.OpTxn([]clientv3.Cmp{unchanged}, []clientv3.Op{touch}, nil)
		}
		return retry.Do(ctx, q.Client, q.Attempt, func(ctx context.Context) error {
			_, err := retry.Txn(ctx, q.Client, nil, ops, nil)
			return err
		})
	})
}

// StepBack lets e go and puts next at the end of its queue, in one transaction, if e waits for ahead: the owner does
// not step back, whoever asks. It reports whether that was done; if not, nothing was. It is one attempt, and repeating
// it is safe; where an answer was lost, "not done" may mean that it was done before.
func (q *Queue) StepBack(ctx context.Context, e, next Entry, ahead Ahead, value string) (done bool, entered Entry, now Ahead, err error) {
	return q.replace(ctx, e, next, value, clientv3.Compare(clientv3.CreateRevision(ahead.Key), "=", ahead.Rev))
}

// Ahead reads what is before e. It is one attempt; the error is ErrGone if e's own key is not there any more.
func (q *Queue) Ahead(ctx context.Context, e Entry) (Ahead, error) { return q.look(ctx, e, "") }

// AwaitSettled waits until nobody before e has yet to step back: those who are asked together go one after the other and
// keep their order, whoever stands between them.
func (q *Queue) AwaitSettled(ctx context.Context, e Entry) error {
	var b retry.Backoff
	var last int64 // the one that was waited for
	for {
		var asked *mvccpb.KeyValue
		err := retry.Do(ctx, q.Client, q.Attempt, func(ctx context.Context) (err error) {
			asked, err = q.askedBefore(ctx, e)
			return err
		})
		if err != nil || asked == nil {
			return err
		}
		if asked.CreateRevision != last {
			b.Reset()
		} else if err := b.Sleep(ctx); err != nil { // do not spin on a member that breaks the watch each time
			return err
		}
		last = asked.CreateRevision
		// Nothing tells when it becomes the owner instead, and stays: it is looked for again.
		part, end := context.WithTimeoutCause(ctx, settledLook, errLookAgain)
		err = q.awaitEnd(part, e.Prefix, asked)
		end()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, errLookAgain)) {
			return err
		}
	}
}

const settledLook = time.Second

var errLookAgain = errors.New("queue: looks again")

// askedBefore is the nearest candidate before e that was asked to step back and has not done so, nil if there is none. The
// owner is asked in vain, and its key is written by others too. It is one attempt.
func (q *Queue) askedBefore(ctx context.Context, e Entry) (*mvccpb.KeyValue, error) {
	maxRev := e.Rev - 1
	for limit := int64(1); ; limit = max(128, 2*limit) { // most often it is the first, or there is only the owner
		read := clientv3.OpGet(e.Prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(limit),
			clientv3.WithMaxCreateRev(maxRev))
		resp, err := retry.Txn(ctx, q.Client, []clientv3.Cmp{e.Held()}, []clientv3.Op{read}, nil)
		if err != nil {
			return nil, err
		}
		if !resp.Succeeded {
			return nil, ErrGone
		}
		page := resp.Responses[0].GetResponseRange()
		for _, kv := range page.Kvs {
			if _, candidate := priorityOf(e.Prefix, kv.Key); !candidate || !touched(kv) {
				continue
			}
			if asked, err := q.waits(ctx, e.Prefix, kv); err != nil || asked {
				return kv, err
			}
		}
		if !page.More {
			return nil, nil
		}
		maxRev = page.Kvs[len(page.Kvs)-1].CreateRevision // which the next page may share, see scan
	}
}

// waits reports whether a key is a contender's that is not the owner.
func (q *Queue) waits(ctx context.Context, prefix string, kv *mvccpb.KeyValue) (bool, error) {
	resp, err := retry.Get(ctx, q.Client, string(kv.Key)) // with its lease
	if err != nil {
		return false, err
	}
	now := first(resp.Kvs)
	if now == nil || now.CreateRevision != kv.CreateRevision || !Contends(prefix, now) {
		return false, nil
	}
	before, err := q.scan(ctx, prefix, clientv3.SortDescend, kv.CreateRevision-1)
	return before != nil, err
}

// awaitEnd waits until a contender's key is gone or contends no more, or the watch breaks.
func (q *Queue) awaitEnd(ctx context.Context, prefix string, kv *mvccpb.KeyValue) error {
	return q.watch(ctx, string(kv.Key), func(ctx context.Context, events clientv3.WatchChan) error {
		there := false
		err := retry.Do(ctx, q.Client, q.Attempt, func(ctx context.Context) (err error) {
			there, err = q.waits(ctx, prefix, kv)
			return err
		})
		if err == nil && there {
			ended(events, prefix, kv.CreateRevision)
		}
		return err
	})
}

// Find is e as it stands in the queue; its revision is 0 if it does not. It is one attempt.
func (q *Queue) Find(ctx context.Context, e Entry) (Entry, error) {
	resp, err := retry.Get(ctx, q.Client, e.Key, clientv3.WithKeysOnly())
	if err != nil {
		return e, err
	}
	e.Rev = 0
	if kv := first(resp.Kvs); kv != nil {
		e.Rev = kv.CreateRevision
	}
	return e, nil
}

// The reasons why nobody can be promoted.
var (
	ErrNoCandidate = errors.New("queue: no such candidate waits")
	ErrBlocked     = errors.New("queue: a contender before it does not step back")
)

// Promote brings the first candidate with the given value right behind e, the owner, by asking those between to let it
// pass, and waits until they have. Whoever enters after that stands behind it.
func (q *Queue) Promote(ctx context.Context, e Entry, value string) (Entry, error) {
	for {
		next, between, err := q.waiting(ctx, e, value)
		if err != nil {
			return Entry{}, err
		}
		if err := q.touch(ctx, between); err != nil {
			return Entry{}, err
		}
		err = q.await(ctx, next, Ahead{}, func(a Ahead) bool { return a.None || a.Key == e.Key && a.Rev == e.Rev })
		if !errors.Is(err, ErrGone) {
			return next, err
		}
		// It has left, or stepped back itself: then it has another key by now.
	}
}

// waiting finds the first candidate with the given value behind e, and those between that have yet to be asked to step back.
func (q *Queue) waiting(ctx context.Context, e Entry, value string) (Entry, []*mvccpb.KeyValue, error) {
	var kvs []*mvccpb.KeyValue
	err := retry.Do(ctx, q.Client, q.Attempt, func(ctx context.Context) error {
		resp, err := retry.Get(ctx, q.Client, e.Prefix, clientv3.WithPrefix(), clientv3.WithMinCreateRev(e.Rev+1),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err == nil {
			kvs = resp.Kvs
		}
		return err
	})
	if err != nil {
		return Entry{}, nil, err
	}
	var between []*mvccpb.KeyValue
	var fixed string // the first of those that keep their places
	for _, kv := range kvs {
		_, candidate := priorityOf(e.Prefix, kv.Key)
		switch {
		case !Contends(e.Prefix, kv):
		case string(kv.Value) == value && fixed != "":
			return Entry{}, nil, fmt.Errorf("%w: key %q", ErrBlocked, fixed)
		case string(kv.Value) == value:
			next := Entry{Prefix: e.Prefix, Key: string(kv.Key), Lease: clientv3.LeaseID(kv.Lease), Rev: kv.CreateRevision}
			return next, between, nil
		case !candidate:
			fixed = string(kv.Key)
		case !touched(kv):
			between = append(between, kv)
		}
	}
	return Entry{}, nil, ErrNoCandidate
}

// LeaveTo deletes e's key, if it is still e's, while next stands in the queue: if next is right behind e, the
// deletion is its turn. Otherwise it does nothing and reports which of the two is gone. It is one attempt. Repeating
// it is safe, but where an answer was lost, "e is gone" may mean that it was done before.
func (q *Queue) LeaveTo(ctx context.Context, e, next Entry) (done, gone bool, err error) {
	resp, err := q.Line.Commit(ctx, commit.Txn{
		Queue: e.Prefix, // not in one commit with next's stepping back, whose comparisons would hold too
		If:    []clientv3.Cmp{e.Held(), next.Held()},
		Then:  []clientv3.Op{clientv3.OpDelete(e.Key)},
		Else:  []clientv3.Op{clientv3.OpGet(e.Key, clientv3.WithKeysOnly())},
	})
	if err != nil || resp.Succeeded {
		return resp.Succeeded, false, err
	}
	kv := first(resp.Responses[0].GetResponseRange().Kvs)
	return false, kv == nil || kv.CreateRevision != e.Rev, nil
}

// Write puts another value into e's key, if that is still e's and was last written at mod. Otherwise it does nothing
// and returns the key as it is, nil if it is gone. It is one attempt. Repeating it with the same mod is safe: a
// request that is late does not undo a later one.
func (q *Queue) Write(ctx context.Context, e Entry, mod int64, value string) (rev int64, found *mvccpb.KeyValue, err error) {
	resp, err := q.Line.Commit(ctx, commit.Txn{
		If:   []clientv3.Cmp{e.Held(), clientv3.Compare(clientv3.ModRevision(e.Key), "=", mod)},
		Then: []clientv3.Op{e.put(value)},
		Else: []clientv3.Op{clientv3.OpGet(e.Key)},
	})
	if err != nil || resp.Succeeded {
		return resp.Revision, nil, err
	}
	return 0, first(resp.Responses[0].GetResponseRange().Kvs), nil
}
