// Package etcdtest runs real etcd servers for tests.
//
// [Start] runs one server inside the test's own process, [StartCluster] several members that form a cluster, and
// [StartProcess] a server in a process of its own, with fsync on, for benchmarks and for tests that pause or kill a
// server. [Etcdctl] and [DebianEtcdctl] give the paths of command line clients, the released one and an old one.
//
// # Life time
//
// Whatever a test starts is stopped in its cleanup, clients before servers, and leaves no goroutine behind. A package
// that uses etcdtest says so in its TestMain:
//
//	func TestMain(m *testing.M) { etcdtest.Main(m) }
//
// Main fails the package if a goroutine is left over. It is also the entry of the process that StartProcess starts, so
// StartProcess does not work without it.
//
// # What differs from a server in production
//
//   - It does not sync its log to the disk. The data survives Stop, Crash and Restart (the kernel has it), not a crash of
//     the machine.
//   - Stop cuts the connections of clients at once. Left to itself, an embedded server may wait for an open watch until a
//     time-out of 5 s + 2 × the election timeout.
//   - A single server has no peer listener, and elects itself without waiting for its election timeout. So does the first
//     member of a cluster when all start.
//   - Ports are taken from 20000-31999, below the range that the kernel gives to outgoing connections: a port that is
//     free while its server is stopped is then not taken by somebody's connection before the server comes back.
//   - Clients reconnect within half a second instead of gRPC's backoff of up to two minutes.
//
// # Facts that tests may rely on
//
// With the default options the smallest TTL the server grants is 2 s (ceil(1.5 × election timeout)), expired leases are
// looked for every 500 ms, and a cluster that has lost its leader has a new one in 1 to 2 s.
package etcdtest
