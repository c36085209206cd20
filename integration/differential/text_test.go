package differential

import (
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// text formats a message without what differs between servers: revisions count from the begin of the program, and
// leases are numbered in the order of their grants.
func (y *party) text(m proto.Message) string {
	var b strings.Builder
	y.write(&b, m.ProtoReflect())
	return b.String()
}

func (y *party) write(b *strings.Builder, m protoreflect.Message) {
	b.WriteByte('{')
	fields, sep := m.Descriptor().Fields(), ""
	for i := range fields.Len() {
		f := fields.Get(i)
		switch f.Name() {
		case "cluster_id", "member_id", "raft_term", "watch_id":
			continue
		}
		if !m.Has(f) {
			continue
		}
		fmt.Fprintf(b, "%s%s:", sep, f.Name())
		sep = " "
		if !f.IsList() {
			y.value(b, f, m.Get(f))
			continue
		}
		b.WriteByte('[')
		for list, n := m.Get(f).List(), 0; n < list.Len(); n++ {
			y.value(b, f, list.Get(n))
		}
		b.WriteByte(']')
	}
	b.WriteByte('}')
}

func (y *party) value(b *strings.Builder, f protoreflect.FieldDescriptor, v protoreflect.Value) {
	name := string(f.Name())
	switch {
	case f.Kind() == protoreflect.MessageKind:
		y.write(b, v.Message())
	case f.Kind() == protoreflect.BytesKind && len(v.Bytes()) > 100:
		fmt.Fprintf(b, "<%d bytes>", len(v.Bytes()))
	case f.Kind() == protoreflect.BytesKind:
		fmt.Fprintf(b, "%q", v.Bytes())
	case f.Kind() == protoreflect.EnumKind && f.Enum().Values().ByNumber(v.Enum()) != nil:
		b.WriteString(string(f.Enum().Values().ByNumber(v.Enum()).Name()))
	case strings.Contains(name, "revision") && v.Int() > 0:
		fmt.Fprintf(b, "r%+d", v.Int()-y.base)
	case name == "lease" || name == "ID":
		b.WriteString(y.lease(v.Int()))
	default:
		fmt.Fprint(b, v.Interface())
	}
}

func (y *party) lease(id int64) string {
	if i := slices.Index(y.leases, clientv3.LeaseID(id)); i >= 0 {
		return fmt.Sprintf("L%d", i+1)
	}
	return fmt.Sprint(id)
}
