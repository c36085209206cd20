package fakeetcd

import (
	"bytes"
	"fmt"
	"maps"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

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
