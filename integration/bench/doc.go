// Command bench measures leasefence beside the Mutex and the Election of etcd's own
// go.etcd.io/etcd/client/v3/concurrency, on etcd servers in processes of their own, with fsync on and etcd's default timing:
//
//	go -C integration run ./bench
//
// That takes a quarter of an hour on two cores, and -short one minute. -list names the scenarios and their goals, -scenarios picks
// some, -json and -svg write files, -cluster measures against three members as well; -help tells the rest.
//
// Clients and servers share the machine, so a client that works less leaves more to the server. The data must lie on a
// real disk: where the folder for temporary files is in memory, -dir names another.
//
// # How it is measured
//
// Each scenario runs in rounds, ours, theirs, theirs, ours and so on, since who goes first may be at an advantage. Each
// round has clients, sessions and names of its own, and a warm-up that is not counted; before the next one the server's
// history is compacted. Figures are those of all rounds together. A goroutine uses one Mutex for all its turns, as its
// users do.
//
// # The table
//
//   - ops: turns, pairs of an acquisition and a release, or what else the scenario counts. In rate, where the load is
//     offered, an acquisition and a release are two.
//   - ops/s: ops by the time from the start of the first to the end of the last.
//   - mean, p50 and p99, in milliseconds: of the latency that the second row names. All latencies are kept, so quantiles
//     are exact: the smallest value that at least that share do not exceed. A turn is the time from one grant to the next,
//     whoever gets it; a hand-over is from the call of Unlock until another's Lock has returned; an acquisition in rate
//     begins when it is due, even if it cannot be sent then.
//   - req/op: requests that reached the servers, all members together: unary calls, and messages on watch streams, each
//     of which asks to begin a watch or to end one. Renewals of leases are left out, and so is what bench itself asks.
//   - comm/op: entries committed to etcd's log; fsync/op: syncs of that log to the disk, of one member. Commits of many
//     requests may share one sync.
//
// The third row is ours divided by theirs, so that more is better for ops/s alone. A line tells when the rounds of one of
// them differ much (the quartiles of their ops/s by half or more): the machine may have had other work then.
//
// The floor is what bare requests take beside the locks in the same rounds: an acquisition is a transaction that makes a
// key; a release is the time from sending a transaction that deletes it to the event at a watch of another client. It is
// measured with the pauses that the scenario has, since a machine that idles in between takes longer to wake up.
//
// Goals are printed as met or missed. That is information: the exit status tells only whether all could be measured.
//
// # The scenarios
//
// The mutex in turns2 and hand-overs of less than 100 ms waits for etcd: a watch that begins at a revision that is not
// the present one any more is served by a loop of the server that runs every 100 ms. With longer sections it is served
// at once. This is why the mean stands beside the median.
//
// In hold50000 the heap counts everything in use by the process for each lock that is held, bench's own bookkeeping of
// some 100 bytes included; renewals are the messages on keep-alive streams that reached the server. In herd the cost of
// n waiting clients is that of emptying a queue of n, less that of a queue of one, for n - 1 hand-overs.
//
// In resign5ms, resign200ms, changes2 and crash a turn is a leadership: an acquisition is a campaign, a release a
// resignation, the peer the Election. Where candidates wait for long before their turn it is served at once, as the
// mutex is; resign200ms shows that. In crash nobody tells the server of the leader's end: what is measured is mostly
// what was left of its lease, which etcd looks for every 500 ms.
package main
