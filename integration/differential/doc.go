// Package differential compares internal/fakeetcd, which most tests of this repository use, with a real etcd: its test
// makes the same random calls on both and requires the same answers, errors, revisions and events.
//
// # What is compared
//
// Every kind of request that leasefence sends, with all its options, and more of the same kind:
//
//   - Get, Put and Delete of a key, a prefix, a range and everything from a key on. Gets with a revision (past,
//     compacted, in the future), a limit, each sort order, keys only, count only, serializable, and bounds of create
//     and mod revisions. Puts with a lease, and Puts that keep the value or the lease. Puts and Deletes with previous
//     values.
//   - Transactions of these, nested too. Comparisons of create revision, mod revision, version, value and lease with
//     each operator and without an operand, of keys and ranges.
//   - Compact.
//   - Grants, whose TTL the server may raise; Revoke; TimeToLive with and without keys; KeepAliveOnce; several leases
//     renewed on one keep-alive stream.
//   - Watches of a key and of ranges from now on, from the past, from a compacted revision and from the future; with
//     previous values, each filter, a notice of the creation, and a leader required. Progress requests and
//     cancellation.
//   - The errors of these calls: no key, an unknown sort order, a value or a lease that is both kept and given, a
//     missing key whose value is to be kept, a missing lease, a TTL that is too long, a revision that is compacted or
//     in the future, a key written twice, too many operations, a request that is too large for the server or for the
//     client, an empty range.
//
// Everything in an answer is compared, except the IDs of cluster and member, the raft term, and how much of a lease's
// TTL remains. Leases are compared by the order of their grants. Events are compared with the responses that contain
// them.
//
// # What is not compared
//
// Whatever depends on time or chance: when a lease expires, and how soon a watch is served. Faults of the network,
// which are no part of etcd. What the fake refuses; see its documentation.
//
// # When the test fails
//
// It prints the shortest sequence of calls that it finds for the first difference, and a seed. To repeat a run:
//
//	go test -run TestFake ./differential -seed 123
//
// The flag -programs makes a run longer.
package differential
