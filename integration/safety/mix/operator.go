package mix

import (
	"context"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// operatorFaults take a lock from its holder.
func operatorFaults() []kind {
	return []kind{{history.OperatorRevokes, revoke}, {history.OperatorDeletes, remove}, {history.OperatorOverwrites, overwrite}}
}

// victim returns the key of somebody who holds it, "" if there is none.
func (s *strike) victim() string {
	held, _ := s.tape.tally.held("")
	held = slices.DeleteFunc(held, func(e history.Event) bool { return e.Key == "" })
	if len(held) == 0 {
		return ""
	}
	return pick(s.rng, held).Key
}

func revoke(s *strike) bool {
	key := s.victim()
	text, _, _ := strings.Cut(key[strings.LastIndexByte(key, '/')+1:], "-")
	id, ok := leaseID(text)
	if !ok {
		return false
	}
	s.begin(text)
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
	defer cancel()
	_, err := s.etcd.Revoke(ctx, id)
	return err == nil
}

func remove(s *strike) bool {
	key := s.victim()
	return s.write(key, clientv3.OpDelete(key))
}

// write does something to a key that is there.
func (s *strike) write(key string, op clientv3.Op) bool {
	if key == "" {
		return false
	}
	s.begin(key)
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
	defer cancel()
	there := clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
	resp, err := s.etcd.Txn(ctx).If(there).Then(op).Commit()
	if err != nil || !resp.Succeeded {
		return false
	}
	s.revision = resp.Header.Revision
	return true
}

// overwrite takes a key off its lease, which it outlives then, and clears it away after a while.
func overwrite(s *strike) bool {
	key := s.victim()
	if key == "" {
		return false
	}
	hit := s.write(key, clientv3.OpPut(key, "mine"))
	if hit {
		s.last(50, 500)
	}
	_ = insist(s.life, func(ctx context.Context) error { // it ends with the run
		_, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", clientv3.NoLease)).
			Then(clientv3.OpDelete(key)).Commit()
		return err
	})
	return hit
}
