package fakeetcd

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
)

// tx collects the writes of one revision. Reads by the same tx see them.
type tx struct {
	srv     *Server
	direct  bool // see Change.Direct
	changes []Change
}

func (t *tx) rev() int64 {
	if len(t.changes) > 0 {
		return t.srv.store.rev + 1
	}
	return t.srv.store.rev
}

func (t *tx) put(r *pb.PutRequest) *pb.PutResponse {
	st, key := &t.srv.store, string(r.Key)
	rev := st.rev + 1
	old := st.at(key, rev)
	kv := &mvccpb.KeyValue{
		Key:            bytes.Clone(r.Key),
		Value:          bytes.Clone(r.Value),
		CreateRevision: rev,
		ModRevision:    rev,
		Version:        1,
		Lease:          r.Lease,
	}
	if old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		if r.IgnoreValue {
			kv.Value = old.Value
		}
		if r.IgnoreLease {
			kv.Lease = old.Lease
		}
		t.srv.lessor.detach(old.Lease, key)
	}
	t.srv.lessor.attach(kv.Lease, key)
	t.changes = append(t.changes, Change{time.Now(), rev, true, kv, st.at(key, st.rev), t.direct})
	st.keys[key] = append(st.keys[key], version{rev: rev, kv: kv})

	resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: t.rev()}}
	if r.PrevKv {
		resp.PrevKv = cloned(old)
	}
	return resp
}

func (t *tx) deleteRange(r *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	resp := &pb.DeleteRangeResponse{}
	for _, kv := range t.srv.store.span(r.Key, r.RangeEnd, t.rev()) {
		resp.Deleted++
		if r.PrevKv {
			resp.PrevKvs = append(resp.PrevKvs, cloned(kv))
		}
		t.remove(kv)
	}
	resp.Header = &pb.ResponseHeader{Revision: t.rev()}
	return resp
}

func (t *tx) remove(kv *mvccpb.KeyValue) {
	st, key := &t.srv.store, string(kv.Key)
	rev := st.rev + 1
	t.srv.lessor.detach(kv.Lease, key)
	gone := &mvccpb.KeyValue{Key: kv.Key, ModRevision: rev}
	t.changes = append(t.changes, Change{time.Now(), rev, false, gone, st.at(key, st.rev), t.direct})
	st.keys[key] = append(st.keys[key], version{rev: rev})
}

// commit makes the writes a revision and notifies the watchers. Without writes there is no new revision.
func (t *tx) commit() {
	if len(t.changes) == 0 {
		return
	}
	st := &t.srv.store
	st.rev++
	st.history = append(st.history, t.changes...)
	t.srv.watches.notify(t.changes)
	t.srv.signal()
}

// plan is a transaction whose branches have been chosen. etcd chooses all branches, nested ones included, before the
// first write.
type plan struct {
	succeeded bool
	ops       []*pb.RequestOp
	nested    map[int]*plan // by position in ops
}

func (t *tx) plan(r *pb.TxnRequest) *plan {
	p := &plan{succeeded: true, ops: r.Success, nested: make(map[int]*plan)}
	for _, c := range r.Compare {
		if !t.holds(c) {
			p.succeeded, p.ops = false, r.Failure
			break
		}
	}
	for i, op := range p.ops {
		if n := op.GetRequestTxn(); n != nil {
			p.nested[i] = t.plan(n)
		}
	}
	return p
}

// check returns every error that the plan can have, so that run cannot fail.
func (t *tx) check(p *plan) error {
	for i, op := range p.ops {
		var err error
		switch {
		case op.GetRequestRange() != nil:
			if rev := op.GetRequestRange().Revision; rev != 0 {
				err = t.srv.store.readable(rev, t.srv.store.rev) // also if it is negative, which means no revision in a Get
			}
		case op.GetRequestPut() != nil:
			err = t.checkPut(op.GetRequestPut())
		case p.nested[i] != nil:
			err = t.check(p.nested[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) checkPut(r *pb.PutRequest) error {
	if r.Lease != 0 && t.srv.lessor.leases[r.Lease] == nil {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	if (r.IgnoreValue || r.IgnoreLease) && t.srv.store.at(string(r.Key), t.srv.store.rev) == nil {
		return rpctypes.ErrGRPCKeyNotFound
	}
	return nil
}

func (t *tx) run(p *plan) *pb.TxnResponse {
	resp := &pb.TxnResponse{Succeeded: p.succeeded, Header: &pb.ResponseHeader{}}
	for i, op := range p.ops {
		out := &pb.ResponseOp{}
		switch {
		case op.GetRequestRange() != nil:
			r, _ := t.srv.store.read(op.GetRequestRange(), t.rev())
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: r}
		case op.GetRequestPut() != nil:
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: t.put(op.GetRequestPut())}
		case op.GetRequestDeleteRange() != nil:
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: t.deleteRange(op.GetRequestDeleteRange())}
		case p.nested[i] != nil:
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: t.run(p.nested[i])}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

// holds evaluates one comparison. Over a range it must hold for every key. Without any key it is made with a zero
// one, but a comparison of values does not hold then.
func (t *tx) holds(c *pb.Compare) bool {
	kvs := t.srv.store.span(c.Key, c.RangeEnd, t.srv.store.rev)
	if len(kvs) == 0 {
		return c.Target != pb.Compare_VALUE && compareKV(c, &mvccpb.KeyValue{})
	}
	for _, kv := range kvs {
		if !compareKV(c, kv) {
			return false
		}
	}
	return true
}

func compareKV(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var result int
	switch c.Target {
	case pb.Compare_VALUE:
		result = bytes.Compare(kv.Value, c.GetValue())
	case pb.Compare_CREATE:
		result = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		result = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		result = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		result = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return result == 0
	case pb.Compare_NOT_EQUAL:
		return result != 0
	case pb.Compare_GREATER:
		return result > 0
	case pb.Compare_LESS:
		return result < 0
	default:
		return true
	}
}

// The checks of etcd's server/etcdserver/api/v3rpc/key.go, in its order, with the server's default limits.
const (
	maxTxnOps       = 128
	maxRequestBytes = 3 << 19 // 1.5 MiB, of which etcd uses some 20 bytes itself
)

func validateRange(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

func validatePut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

func validateDelete(r *pb.DeleteRangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

func validateTxn(r *pb.TxnRequest) error {
	if err := validateOps(r, maxTxnOps); err != nil {
		return err
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		if _, err := writeSetOf(ops); err != nil {
			return err
		}
	}
	if sizeOf(r) > maxRequestBytes {
		return rpctypes.ErrGRPCRequestTooLarge
	}
	return nil
}

func validateOps(r *pb.TxnRequest, limit int) error {
	n := max(len(r.Compare), len(r.Success), len(r.Failure))
	if n > limit {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if err := validateOp(op, limit-n); err != nil {
				return err
			}
		}
	}
	return nil
}

func validateOp(op *pb.RequestOp, limit int) error {
	switch {
	case op.GetRequestRange() != nil:
		return validateRange(op.GetRequestRange())
	case op.GetRequestPut() != nil:
		return validatePut(op.GetRequestPut())
	case op.GetRequestDeleteRange() != nil:
		return validateDelete(op.GetRequestDeleteRange())
	case op.GetRequestTxn() != nil:
		return validateOps(op.GetRequestTxn(), limit)
	default:
		return rpctypes.ErrGRPCKeyNotFound
	}
}

// writeSet is the set of keys that a list of operations writes. A key must not be put twice, nor put and deleted, in
// one transaction. The two branches of one nested transaction exclude each other and may share keys.
type writeSet struct {
	puts map[string]bool
	dels []*pb.DeleteRangeRequest
}

// errOpenEnded refuses transactions that etcd should refuse too. etcd does not notice that a put and a deletion of
// everything from a key on concern the same key. If such a put keeps the value of the deleted key, the server crashes.
var errOpenEnded = fmt.Errorf("%w: a put of a key that the transaction deletes with everything from a key on", ErrNotSupported)

// mayPut returns an error if a key is already written.
func (w *writeSet) mayPut(key string, puts map[string]bool) (err error) {
	if puts[key] {
		return rpctypes.ErrGRPCDuplicateKey
	}
	for _, d := range w.dels {
		switch {
		case !inRange([]byte(key), d.Key, d.RangeEnd):
		case openEnded(d.RangeEnd):
			err = errOpenEnded
		default:
			return rpctypes.ErrGRPCDuplicateKey
		}
	}
	return err
}

func writeSetOf(ops []*pb.RequestOp) (*writeSet, error) {
	w := &writeSet{puts: make(map[string]bool)}
	for _, op := range ops {
		if d := op.GetRequestDeleteRange(); d != nil {
			w.dels = append(w.dels, d)
		}
	}
	for _, op := range ops {
		if n := op.GetRequestTxn(); n != nil {
			if err := w.addNested(n); err != nil {
				return nil, err
			}
		}
	}
	for _, op := range ops {
		p := op.GetRequestPut()
		if p == nil {
			continue
		}
		k := string(p.Key)
		if err := w.mayPut(k, w.puts); err != nil {
			return nil, err
		}
		w.puts[k] = true
	}
	return w, nil
}

func (w *writeSet) addNested(r *pb.TxnRequest) error {
	before := maps.Clone(w.puts)
	var dels []*pb.DeleteRangeRequest
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		branch, err := writeSetOf(ops)
		if err != nil {
			return err
		}
		for k := range branch.puts {
			if err := w.mayPut(k, before); err != nil {
				return err
			}
			w.puts[k] = true
		}
		dels = append(dels, branch.dels...)
	}
	w.dels = append(w.dels, dels...)
	return nil
}

// sizeOf is the length of a request on the wire.
func sizeOf(r any) int {
	data, err := encoding.GetCodecV2(proto.Name).Marshal(r)
	if err != nil {
		panic(err) // r is no message
	}
	defer data.Free()
	return data.Len()
}

// emptyRange reports whether [key, end) is empty, so that etcd refuses to watch it.
func emptyRange(key, end []byte) bool {
	return len(end) != 0 && !openEnded(end) && bytes.Compare(key, end) >= 0
}
