package etcd

import (
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// CheckClient refuses a nil client, a client without a KV, a Watcher or a Lease, and one of which only some of these have
// a namespace. With a bare Lease, the lease would list the session's keys under other names; with a bare Watcher, no
// waiter would learn of its turn, and no observer of a change. Package clientv3/namespace does not export its types, so
// the check goes by their names.
func CheckClient(client *clientv3.Client) error {
	if client == nil {
		return errors.New("client is nil, want an etcd client")
	}
	var inside, bare []string
	for _, part := range []struct {
		name, wrapper string
		is            any
	}{
		{"KV", "*namespace.kvPrefix", client.KV},
		{"Watcher", "*namespace.watcherPrefix", client.Watcher},
		{"Lease", "*namespace.leasePrefix", client.Lease},
	} {
		switch {
		case part.is == nil:
			return fmt.Errorf("client.%s is nil, want a client of clientv3.New", part.name)
		case fmt.Sprintf("%T", part.is) == part.wrapper:
			inside = append(inside, part.name)
		default:
			bare = append(bare, part.name)
		}
	}
	if len(inside) == 0 || len(bare) == 0 {
		return nil
	}
	return fmt.Errorf("client: %v has a namespace and %v has none, want KV, Watcher and Lease in the same one (package clientv3/namespace) or none of them",
		inside, bare)
}
