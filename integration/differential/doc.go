// Package differential compares internal/fakeetcd, which most tests of this repository use, with a real etcd: its test
// makes the same random calls on both and requires the same answers, errors, revisions and events.
//
// # What is compared
//
// Every kind of request that leasefence sends, with all its options, and more of the same kind: party.call draws them. The
// errors that they must meet are errorsToDraw.
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
