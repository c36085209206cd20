package differential

import (
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// text formats a message without what differs between servers: revisions count from the begin of the program, and
// leases are numbered in the order of their grants.
func (y *party) text(m proto.Message) string {
	m = proto.Clone(m)
	y.adjust(m.ProtoReflect())
	return prototext.MarshalOptions{}.Format(m)
}

func (y *party) adjust(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch name := string(f.Name()); {
		case slices.Contains([]string{"cluster_id", "member_id", "raft_term", "watch_id"}, name):
			m.Clear(f)
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				y.adjust(v.List().Get(i).Message())
			}
		case f.IsList():
		case f.Message() != nil:
			y.adjust(v.Message())
		case f.Kind() == protoreflect.BytesKind && len(v.Bytes()) > 100:
			m.Set(f, protoreflect.ValueOfBytes(fmt.Appendf(nil, "<%d bytes>", len(v.Bytes()))))
		case strings.Contains(name, "revision") && v.Int() > 0:
			m.Set(f, protoreflect.ValueOfInt64(v.Int()-y.base+1e6)) // 0 means none
		case name == "lease" || name == "ID":
			if i := slices.Index(y.leases, clientv3.LeaseID(v.Int())); i >= 0 {
				m.Set(f, protoreflect.ValueOfInt64(-1-int64(i)))
			}
		}
		return true
	})
}
