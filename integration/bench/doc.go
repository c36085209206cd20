// Command bench compares leasefence with the limit of the machine, and with its peer, the Mutex and the Election of
// etcd's package concurrency. The etcd server runs in a separate process, with fsync on and etcd's default timing:
//
//	go -C integration run ./bench
//
// That takes a quarter of an hour on two cores, and with -short one minute. -scenarios selects some, and -svg writes a
// chart. -dir sets the folder of the server's data. Give it twice, a folder on a real disk and one in memory, to compare
// a slow and a fast disk. docs/figures.md has results, and says what the limit is.
//
// The share of the limit is leasefence's rate divided by the bare program's. If the scenario sets the rate, it is the
// bare program's median latency divided by leasefence's. "Times the peer" is the same ratio to etcd's package. Each
// ratio is taken within a round, and the median of the rounds is printed; the contenders run in alternating order.
//
// Each round has new clients, sessions and names, and a warm-up that is not counted. After it the server's history is
// compacted. A goroutine uses one Mutex for all its turns, as users do. Clients and server share the machine, so a
// client that computes less leaves more time to the server.
//
// # The table
//
//   - ops/s: turns, or pairs of an acquisition and a release; in hold50000 calls.
//   - mean, p50 and p99: of the latency that the scenario names. A turn lasts from one grant to the next, of any
//     client. A hand-over or a change lasts from the call of Unlock or Resign until another client's Lock or Campaign
//     has returned.
//   - requests: unary calls, and messages on watch streams, each of which begins or ends a watch. Renewals are not
//     counted.
//   - commits: entries of etcd's log. fsyncs: syncs of that log to the disk, which several commits may share.
//   - client µs and server µs: processor time of this process and of the server's. allocs: allocations of this process.
//
// The output says which goals are met, but a missed goal does not change the exit status. Requests, commits and
// allocations hardly depend on the machine, and TestBounds checks them against bounds.
package main
