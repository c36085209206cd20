// Package integration tests leasefence on real etcd servers and databases. Timing and order alone are tested in fake time,
// beside the code.
//
// Tests:
//
//   - interop: locks and elections mixed with those of etcd's package concurrency and of etcdctl.
//   - scenario: one fault at a time, of the network, the cluster, its permissions and its load.
//   - safety: all faults at random, for as long as you like; the recorded history is checked afterwards.
//   - differential: the same calls on internal/fakeetcd and on a real etcd.
//   - sqlfence, etcdfence: the fences of SQL stores and of etcd.
//   - command: the command leasefence, and its page in a browser.
//   - docs: the code, the links and the names of tests in the documents.
//   - mutants: leasefence built with one fault at a time, which a test must find.
//   - bench: leasefence measured beside etcd's own locks.
//
// Helpers: etcdtest runs etcd servers for tests, one in the test's process or a cluster in processes of etcdproc, faults
// disturbs the traffic of a client, rig has what these tests share, child runs a process that a test can pause
// and kill, and pki issues certificates.
package integration
