// Package etcdtest runs real etcd servers for tests.
//
// [Start] runs one server inside the test's process, [StartCluster] runs several members that form a cluster, and
// [StartProcess] runs a server in a separate process, with fsync on, for benchmarks and for tests that pause or kill a
// server. [Etcdctl] and [DebianEtcdctl] return the paths of the current etcdctl and of an old one.
//
// # Lifetime
//
// The test's cleanup stops clients first and then servers, and leaves no goroutine behind. A package that uses etcdtest
// calls Main in its TestMain:
//
//	func TestMain(m *testing.M) { etcdtest.Main(m) }
//
// Main fails the package if a goroutine is left. The process that StartProcess starts also enters through Main, so
// StartProcess does not work without it.
//
// # What differs from a server in production
//
//   - It does not sync its log to the disk. The data survives Stop, Crash and Restart (the kernel has it), but not a
//     crash of the machine.
//   - Stop cuts the connections of clients at once. An embedded server would otherwise wait for an open watch, for up
//     to 5 s + 2 × the election timeout.
//   - A single server has no peer listener. It campaigns at once, without waiting for its election timeout. So does the
//     first member of a cluster when all members start.
//   - Ports come from 20000-31999, below the range that the kernel uses for outgoing connections: no such connection
//     can take the port of a stopped server before it restarts.
//   - Clients retry a connection every half second, instead of with gRPC's backoff of up to two minutes.
//
// # Facts that tests may rely on
//
// With the default options the smallest TTL that the server grants is 2 s (ceil(1.5 × election timeout)). The server
// looks for expired leases every 500 ms. A cluster that has lost its leader elects a new one in 1 to 2 s.
package etcdtest
