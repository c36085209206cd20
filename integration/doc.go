// Package integration proves leasefence against real servers: embedded, in processes of their own, and behind faults. What
// is a matter of timing and order alone is proven in fake time, beside the code.
//
// What is where:
//
//   - interop: beside etcd's own package concurrency and etcdctl.
//   - scenario: each fault of the network, the process, the cluster, its storage, its operator and its load by itself.
//   - safety: all faults at random, for as long as one likes, with a record that is checked.
//   - differential: the fake etcd of the other tests beside a real one.
//   - sqlfence, etcdfence: the fences of SQL stores and of etcd; model: fences against a model of what they promise.
//   - mutants: faults in leasefence's own code, each of which a test must find.
//   - bench: leasefence measured beside etcd's own locks.
//
// Their helpers are etcdtest and etcdproc, which run servers, faults, which disturbs what is sent to them, rig, which has the
// ways to hold a name and the witnesses of who held it, child, pki and storetest.
package integration
