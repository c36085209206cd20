package fakeetcd

import (
	"bytes"
	"maps"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// The checks of etcd's server/etcdserver/api/v3rpc/key.go, in its order, with the server's default limits.
const (
	maxTxnOps       = 128
	maxRequestBytes = 3 << 19 // 1.5 MiB
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
	case len(r.Key)+len(r.Value) > maxRequestBytes:
		return rpctypes.ErrGRPCRequestTooLarge
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
	if txnBytes(r) > maxRequestBytes {
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

// writeSet is what a list of operations writes. A key must not be put twice, nor put and deleted, in one
// transaction; the branches of one nested transaction exclude each other and may share keys.
type writeSet struct {
	puts map[string]bool
	dels []*pb.DeleteRangeRequest
}

func (w *writeSet) deletes(key string) bool {
	for _, d := range w.dels {
		if inRange([]byte(key), d.Key, d.RangeEnd) {
			return true
		}
	}
	return false
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
		if w.puts[k] || w.deletes(k) {
			return nil, rpctypes.ErrGRPCDuplicateKey
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
			if before[k] || w.deletes(k) {
				return rpctypes.ErrGRPCDuplicateKey
			}
			w.puts[k] = true
		}
		dels = append(dels, branch.dels...)
	}
	w.dels = append(w.dels, dels...)
	return nil
}

func txnBytes(r *pb.TxnRequest) int {
	n := 0
	for _, c := range r.Compare {
		n += len(c.Key) + len(c.RangeEnd) + len(c.GetValue())
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			n += len(op.GetRequestRange().GetKey()) + len(op.GetRequestRange().GetRangeEnd()) +
				len(op.GetRequestPut().GetKey()) + len(op.GetRequestPut().GetValue()) +
				len(op.GetRequestDeleteRange().GetKey()) + len(op.GetRequestDeleteRange().GetRangeEnd())
			if t := op.GetRequestTxn(); t != nil {
				n += txnBytes(t)
			}
		}
	}
	return n
}

// emptyRange says whether etcd refuses to watch [key, end).
func emptyRange(key, end []byte) bool {
	openEnded := len(end) == 1 && end[0] == 0
	return len(end) != 0 && !openEnded && bytes.Compare(key, end) >= 0
}
