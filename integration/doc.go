// Package integration proves leasefence against real etcd servers: embedded, in processes of their own, and behind
// faults. It has no code of its own besides its helpers, etcdtest, etcdproc, pki and faults, and bench, which
// measures leasefence beside etcd's own locks.
//
// A test that stands for a row of the list of what hurts users of etcd today names it in its comment: "pain 7".
package integration
