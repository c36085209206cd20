package mix

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// takings are the ways in which an operator takes a lock from its holder, by the lock's key.
var takings = []struct {
	name string
	take func(s *strike, key string) bool
}{{history.OperatorRevokes, revoke}, {history.OperatorDeletes, remove}, {history.OperatorOverwrites, overwrite}}

func operatorFaults() []kind {
	var kinds []kind
	for _, t := range takings {
		kinds = append(kinds, kind{t.name, func(s *strike) bool {
			held := slices.DeleteFunc(s.tape.held(""), func(e history.Event) bool { return e.Key == "" && !e.Verb.Many() })
			if len(held) == 0 {
				return false
			}
			e := pick(s.rng, held)
			return s.taken(t.take, e.Key, e.Token)
		}})
	}
	return kinds
}

// taken takes the key of a handle. If the handle has no method Key, it takes one of the keys that were created at its
// token's revision and still exist.
func (s *strike) taken(take func(*strike, string) bool, key string, token fence.Token) bool {
	if keys := s.watch.created(token.Revision()); key == "" && len(keys) > 0 {
		key = pick(s.rng, keys)
	}
	return key != "" && take(s, key)
}

func revoke(s *strike, key string) bool {
	text, _, _ := strings.Cut(strings.TrimPrefix(key[strings.LastIndexByte(key, '/')+1:], "r"), "-") // a reader's begins with r
	id, err := strconv.ParseInt(text, 16, 64)
	if err != nil || id == 0 {
		return false
	}
	s.begin(text)
	return s.asks(func(ctx context.Context) error {
		_, err := s.etcd.Revoke(ctx, clientv3.LeaseID(id))
		return err
	})
}

func remove(s *strike, key string) bool {
	s.begin(key)
	return s.asks(func(ctx context.Context) error { return s.write(ctx, key, clientv3.OpDelete(key)) })
}

// overwrite takes a key off its lease, so that the key outlives the lease, and deletes the key after a while.
func overwrite(s *strike, key string) bool {
	s.begin(key)
	return s.meanwhile(
		func(ctx context.Context) error { return s.write(ctx, key, clientv3.OpPut(key, "mine")) },
		func(ctx context.Context) error {
			_, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", clientv3.NoLease)).
				Then(clientv3.OpDelete(key)).Commit()
			return err
		}, func() { s.last(50, 500) })
}

// write applies op to a key, if the key exists.
func (s *strike) write(ctx context.Context, key string, op clientv3.Op) error {
	resp, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), ">", 0)).Then(op).Commit()
	if err == nil && !resp.Succeeded {
		err = errors.New("no such key")
	}
	if err == nil {
		s.revision = resp.Header.Revision
	}
	return err
}

// storageFaults are what an operator's maintenance jobs do, and a member that runs out of space.
func storageFaults() []kind {
	return []kind{{history.Compaction, compact}, {"defragmentation", onMember(defragment)}, {"no space", noSpace}}
}

// compact discards the revisions that the key watch has seen. Watches of clients that were broken may miss some of
// them.
func compact(s *strike) bool {
	rev := s.watch.revision()
	if rev <= s.compacted {
		return false
	}
	s.begin("all members")
	return s.asks(func(ctx context.Context) error {
		_, err := s.etcd.Compact(ctx, rev)
		if err == nil {
			s.compacted = rev
		}
		return err
	})
}

func defragment(s *strike, m *etcdproc.Process) bool {
	return s.asks(func(ctx context.Context) error {
		_, err := s.etcd.Defragment(ctx, m.Endpoint())
		return err
	})
}

// noSpace raises the alarm that a member raises when its quota is used up. The members then refuse every write that
// adds to the store.
func noSpace(s *strike) bool {
	s.begin("all members")
	m := pick(s.rng, s.cluster.Members)
	id, _ := s.status(m)
	if id == 0 {
		return false
	}
	alarm := &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: etcdserverpb.AlarmType_NOSPACE,
	}
	return s.meanwhile(
		func(ctx context.Context) error {
			_, err := etcdserverpb.NewMaintenanceClient(s.etcd.ActiveConnection()).Alarm(ctx, alarm)
			return err
		},
		func(ctx context.Context) error {
			_, err := s.etcd.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: alarm.MemberID, Alarm: alarm.Alarm})
			return err
		}, func() { s.last(200, 1500) })
}
