// Package differential compares internal/fakeetcd, on which most tests of this repository rest, with a real etcd: its test
// makes the same random calls on both and requires the same answers, errors, revisions and events.
//
// # What is compared
//
// Every kind of request that leasefence sends, with all its options, and more of the same kind:
//
//   - Get, Put and Delete of a key, a prefix, a range and everything from a key on. Gets with a revision (past, compacted,
//     in the future), a limit, each sort order, keys only, count only, serializable, and bounds of create and mod revisions.
//     Puts with a lease, and such that keep the value or the lease. The previous values of both.
//   - Transactions of these, nested too. Comparisons of create revision, mod revision, version, value and lease with each
//     operator and without an operand, of keys and ranges.
//   - Compact.
//   - Grants, which the server may give a longer TTL; Revoke; TimeToLive with and without keys; KeepAliveOnce; several leases
//     renewed on one keep-alive stream.
//   - Watches of a key and of ranges from now on, from the past, from a compacted revision and from the future; with previous
//     values, each filter, a notice of the creation, and a leader required. Progress requests and cancellation.
//   - The errors that these calls draw: no key, an unknown sort order, a value or a lease to be kept and given, a missing key
//     whose value is to be kept, a missing lease, a TTL that is too long, a revision that is compacted or in the future, a key
//     written twice, too many operations, a request that is too large for the server or for the client, an empty range.
//
// Of each answer all is compared but the IDs of cluster, member and lease, the raft term, and how much of a lease's TTL
// remains. Events are compared with the responses that they come in.
//
// # What is not compared
//
// Whatever depends on time or on chance: when a lease expires, and how soon a watch is served. Faults of the network, which
// etcd knows nothing about. What the fake refuses; see its package's page.
//
// # When the test fails
//
// It prints the shortest sequence of calls that it finds for the first difference, and a seed. To repeat a run:
//
//	go test -run TestFake ./differential -seed 123
//
// The flag -programs makes a run longer.
package differential
