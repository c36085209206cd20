// Package commit carries the transactions of one session to etcd. Those that are under way at the same time share
// commits: they travel as one transaction, which costs the server one entry in its log, one sync to the disk and one
// message instead of many. Its comparisons are all of theirs together, and if these do not all hold it is sent again
// with each of them nested in it, to succeed or not by itself.
//
// A [Line] has one request under way at a time, and a few while those that wait fill one. A transaction that finds
// none under way goes at once and alone, so that sharing adds nothing to its time. The others wait, and whatever has
// gathered when a request has come back goes together. A request that does not come back holds up nobody for long:
// another goes beside it.
//
// Callers do not notice each other. Each has its own comparisons and its own result. One that gives up while it
// waits was not sent, and says so ([retry.ErrNotSent]); one that gives up later leaves the others where they are.
// If the server refuses a request that carries several, it has carried out none of them, and they are sent again
// in smaller parts, down to single ones, so that the refusal meets only whom it is meant for. If the answer
// is lost, each caller is told so and finds out for itself what became of its own.
//
// The server's limits (operations in a transaction, bytes in a request) are its defaults at first; where they are
// lower, the line learns it from the first refusal.
package commit
