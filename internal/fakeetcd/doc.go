// Package fakeetcd is an etcd in memory for unit tests that run in a testing/synctest bubble.
//
// A [Server] behaves like one etcd 3.7 member that never restarts: revisions, transactions, leases and watches.
// A [Client] is a *clientv3.Client over a faked network. The fakes implement the gRPC interfaces (pb.KVClient,
// pb.LeaseClient, pb.WatchClient), so the real client's own code, with its watch resumption and its error mapping, runs
// above them. There are no sockets, and every wait is on a channel or a timer of the bubble, so the bubble's time moves
// as soon as the code under test waits too.
//
// Make the server and its clients inside the bubble, and call [Server.Close] before the bubble ends (t.Cleanup will
// do). Events that are due at the same instant of the bubble's clock happen in any order: a test that has slept until
// then calls synctest.Wait, or waits with [Server.Await], before it checks anything.
//
// # What the network can do
//
// For one client, [Client.Cut] holds back everything in both directions until [Client.Restore], as TCP does behind a
// black hole. For one client and method, [Client.Inject] delays a request or its answer, loses either, or lets the
// request reach the server after its caller has given up ([Fault.Late]).
//
// # What differs from etcd
//
// The test in integration/differential makes the same random calls here and on a real etcd, and requires the same
// answers, errors, revisions and events. These differences remain:
//
//   - The real client retries Get, Grant, Revoke and TimeToLive by itself after Unavailable (up to 100 times), but
//     in its connection, which the fake does not have: here the caller sees the first error.
//   - KeepAliveOnce and Watch retry without end after Unavailable, as the real ones do. Such an error arrives no sooner
//     than 23 ms after the request: otherwise the retries would keep the bubble's clock from moving.
//   - Watches on past revisions get their backlog at the next multiple of 100 ms, and expired leases are revoked at the next
//     multiple of 500 ms, both counted from [New]. On a real server the phase is arbitrary.
//   - TimeToLive lists a lease's keys in the order of their names. etcd has no order.
//   - The size limit applies to read-only transactions too.
//   - Client.ActiveConnection returns nil and Client.SetEndpoints panics, as for every clientv3.NewCtxClient. Auth, Cluster,
//     Maintenance, Leases and GetStream return [ErrNotSupported], and so does a transaction that puts a key and
//     deletes it with everything from a key on.
package fakeetcd
