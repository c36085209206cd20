// Package etcdtest runs real etcd servers for tests.
//
// [Start] runs one server inside the test's process, where a test can look into it. [StartCluster] runs one or more
// servers that form a cluster, each in a separate process, for tests that pause or kill a server, or restore its data.
// [Etcdctl] and [DebianEtcdctl] return the paths of the current etcdctl and of an old one.
//
// # Lifetime
//
// The test's cleanup stops clients first and then servers, and leaves no goroutine behind. A package that uses etcdtest
// calls Main in its TestMain:
//
//	func TestMain(m *testing.M) { etcdtest.Main(m) }
//
// Main fails the package if a goroutine is left. The processes that StartCluster starts also enter through Main, so
// StartCluster does not work without it.
//
// # What differs from a server in production
//
//   - The server of Start does not sync its log to the disk. It hashes passwords at the lowest cost.
//   - It cuts the connections of clients at once when it ends. An embedded server would otherwise wait for an open watch,
//     for up to 5 s + 2 × the election timeout.
//   - A single server has no peer listener. It campaigns at once, without waiting for its election timeout.
//   - Clients retry a connection every half second, instead of with gRPC's backoff of up to two minutes.
//
// # Facts that tests may rely on
//
// With the default options the smallest TTL that the server grants is 2 s (ceil(1.5 × election timeout)). The server
// looks for expired leases every 500 ms. A cluster that has lost its leader elects a new one in 1 to 2 s.
package etcdtest
