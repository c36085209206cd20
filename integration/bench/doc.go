// Command bench measures leasefence beside the limit of the machine, and beside the Mutex and the Election of etcd's own
// go.etcd.io/etcd/client/v3/concurrency, on an etcd server in a process of its own, with fsync on and etcd's default timing:
//
//	go -C integration run ./bench
//
// That takes a quarter of an hour on two cores, and -short one minute. -list names the scenarios and their goals, -scenarios picks
// some, -svg writes a chart. -dir names the folder of the server's data, and may be given more than once: one on a real disk and
// one in memory show a slow and a fast disk.
//
// # The limit
//
// In each round of each scenario a bare program does what is least for such a lock on etcd, on the same server. It knows
// beforehand what a lock has to find out, and would not survive a fault:
//
//   - ring, for turns, hand-overs and elections: clients in a fixed order. Each deletes its key and makes it again, and has
//     its turn at the event of the deletion before, from a watch that it keeps: two requests, two commits, one event a turn.
//   - group commits, for locks that nobody else wants: transactions of up to 120 operations, one after the other.
//     With one goroutine it is a transaction to make the key and one to delete it.
//   - chain, for the goroutines of one process on one lock: a transaction a turn, which deletes one key and makes the next.
//
// The share of the limit is ours divided by the bare program's, as rates or, where the scenario sets the rate, as medians of the
// latency (the bare one's by ours). "Beside the peer" is the same beside etcd's package. Both are in the middle of the rounds,
// which take turns as to who goes first. Ratios beside the peer depend on the disk: in short sections its waiters
// wait for a loop of the server that runs every 100 ms, and ours for commits. Shares do not, but for what the
// processors add to a commit.
//
// Each round has clients, sessions and names of its own, and a warm-up that is not counted. After it the server's history is
// compacted. A goroutine uses one Mutex for all its turns, as its users do. Clients and server share the machine, so that a client
// that works less leaves more to the server.
//
// # The table
//
//   - ops/s: turns, or pairs of an acquisition and a release; in hold50000 calls.
//   - mean, p50 and p99 of the latency that the scenario names. A turn is the time from one grant to the next, whoever gets it. A
//     hand-over or a change is from the call of Unlock or Resign until another client's Lock or Campaign has returned.
//   - requests: unary calls, and messages on watch streams, each of which asks to begin a watch or to end one. Renewals of leases
//     are left out.
//   - commits: entries of etcd's log. fsyncs: syncs of that log to the disk, which several commits may share.
//   - client µs and server µs: processor time of this process and of the server's. allocs: allocations of this process.
//
// Goals are printed as met or missed. That is information: the exit status tells only whether all could be measured. Requests,
// commits and allocations hardly depend on the machine: TestBounds holds them to bounds.
package main
