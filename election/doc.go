// Package election is leader election on the sessions of package lease: a lease with a value, and the fencing token
// that makes it safe.
//
// [Run] is the form for a service: it campaigns, calls a function when it leads, cancels its context when it no longer
// does, waits for it, and campaigns again. [Campaign] returns a [Leadership], a handle for those who need other forms.
// [Current] and [Observe] tell everybody else who leads. Each leadership carries a fencing token for the check at the
// resource: see package fence. An election without that check is a hint.
//
// # Guarantees
//
// They are those of package lease. For one election, two leaderships are never live (their contexts not done) at the
// same instant, while processes run and clocks tick at about the same rate: a leader's context ends by a local timer
// before the server can let another lead, whatever happens to the network, and nothing is read from the wall clock.
// Tokens grow from leader to leader, in the order in which they lead, across processes, leader changes of etcd and
// restarts. A campaign that fails leaves nothing behind. A process that is paused past its deadline may have a write on
// its way: only the fence at the resource refuses that one.
//
// Who leads is known by lease and key, never by a name that somebody chose: two candidates with the same value are
// still two.
//
// # What ends a leadership
//
//	event                                          cause of the context              Resign returns   matches
//	Resign, Transfer                               ErrResigned                       nil              -
//	no renewal acknowledged before the deadline    lease.LostError DeadlinePassed    the same         lease.ErrLost
//	lease expired at the server, or revoked        lease.LostError LeaseGone         the same         lease.ErrLost
//	key deleted by somebody else                   lease.LostError KeyDeleted        the same         lease.ErrLost
//	key taken off its lease by a write             lease.LostError KeyOverwritten    the same         lease.ErrLost
//	lease.Session.Close                            lease.LostError SessionClosed     the same         lease.ErrLost, lease.ErrClosed
//
// # Order, priority and transfer
//
// Candidates lead in the order in which they came. Each stands in etcd's queue for itself, also those of one session.
//
// A candidate with an [Options].Priority goes before those of lower priority that wait, and leads after the next
// change; who leads already is left in peace. [Leadership.Transfer] puts one candidate before all others, whatever their
// priority, and hands over to it.
//
// Etcd's order, and that of the tokens, is the order of the keys' creation, for everybody. So nobody is put before
// another: those that are to be passed are asked to step back, and each then enters again at the end, with a new key
// and a larger token. Tokens therefore grow in the order of leading, whoever passes whom. It follows that:
//
//   - Only candidates of this package step back. Those of concurrency.Election and etcdctl elect, and locks of the
//     same name, keep their places: they count as priority 0, and a candidate that came after one leads after it. Those
//     who step back do so past them too.
//   - A candidate that hangs does not step back until its lease has expired, and who wants to pass it waits for that.
//   - Stepping back takes each candidate a few requests, when the other comes and not at the change: a candidate with a
//     priority that joins a thousand without one makes all of them enter again.
//   - One that has waited for less than 250 ms may be asked, and steps back only then. A change of leader in between
//     goes by the order there is.
//   - Those who are passed by one candidate keep their order. Where several candidates pass at the same time, those of
//     one priority may change places; and one that a Transfer has passed may find itself behind a lower priority that
//     waited there, since it does not ask those to step back for whom it may have stepped back itself.
//   - A Transfer while candidates of higher priority come and go begins again each time that one is in the way.
//
// # What it costs
//
// As a lock: a campaign is a transaction, a resignation another and one event at the next candidate. A change of leader
// wakes one other candidate, however many wait. A candidate that waits has two watches, of the key before it and of
// its own. Observers of one election share a watch in each process.
//
// # With etcd's own elections
//
// The keys are those of concurrency.Election with the same name and of etcdctl elect: candidates of all three stand in
// one queue and see each other's values. A value that is written to a leader's key on the same lease, as by
// concurrency.ResumeElection and Proclaim, is a proclamation like any other. A lock of package lease with the same name
// stands in the same queue too.
//
// # Permissions
//
// As for locks: read and write permission on the range of keys with the prefix Options.Prefix + name + "/", and for
// observers read permission on it.
package election
