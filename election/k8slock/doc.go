// Package k8slock keeps the leader record of Kubernetes' client-go in etcd: its LeaderElector, and with it
// controller-runtime's manager, then elects a leader without an API server. Each tenure has a fencing token.
//
// A [Lock] is a resourcelock.Interface. Give it to a leaderelection.LeaderElectionConfig as Lock, or to a
// manager.Options as LeaderElectionResourceLockInterface. In OnStartedLeading, or at the start of a Runnable that needs
// election, call [Lock.NewContext] and do the work under the context it returns.
//
// # In etcd
//
// The record is one key, [Options].Prefix + "/k8slock/" + name, with client-go's JSON and an additional number,
// "write". The key is attached to an etcd lease of the record's LeaseDurationSeconds, so a crashed leader's record
// expires, and a candidate that starts after that leads at once; on an API server it would wait for a whole lease
// duration. A process that restarts with the same identity waits until its old record has expired, unless
// [Options].StableIdentity is set. Every write is a transaction on condition that the record is at the revision that
// was seen last. A lease belongs to one tenure, and a Lock recognizes its own record by the lease: the identity is only
// for people. No lock or election of leasefence has the key in its queue, whatever the names.
//
// # Guarantees
//
// Tokens of one name only grow from tenure to tenure. The token is the revision of the write that began the tenure;
// renewals do not change it. An acquisition after a release, by the same Lock or another, begins a new tenure with a
// larger token. An acquisition that failed is undone and never adopted, so a token is always the revision of a write
// that its call saw done.
//
// The context of NewContext ends before anybody else can lead, however messages are delayed or lost, while processes
// run and clocks tick at about the same rate. A local timer ends it min(LeaseDurationSeconds, granted TTL) after the
// last call that has acquired or renewed it began, less a tenth of that and at most 1 s. It also ends before a release
// is sent, and as soon as a call finds the record gone or another process's. None of this depends on client-go's own
// timing.
//
// While the elector leads, no other tenure follows a lost one. On an API server an elector whose record was deleted
// writes a new one and goes on, although another leader may have worked in between; here it has to step down first. A
// release never touches a record that is not the Lock's; client-go itself releases without checking whose record it is.
//
// # When the elector itself stops
//
// client-go stops leading at the latest RetryPeriod + RenewDeadline after its last success (it begins to count the
// RenewDeadline at its next try), and a call succeeds at most Timeout after it began. With ReleaseOnCancel it reads and
// writes the record before it calls OnStoppedLeading; while it leads, no call outlasts the tenure's deadline.
//
// So after a release another candidate may lead before OnStoppedLeading is called. The context of NewContext has ended
// by then. Without a release, OnStoppedLeading is called before another candidate leads if
//
//	LeaseDuration ≥ RenewDeadline + RetryPeriod + Timeout + margin
//
// with LeaseDuration cut to whole seconds, as client-go does, Timeout the smaller of [Options].Timeout and a quarter of
// LeaseDuration, and margin a tenth of LeaseDuration and at most 1 s. client-go's usual 15 s, 10 s and 2 s fit exactly:
// 15 ≥ 10 + 2 + 2 + 1. client-go checks LeaseDuration > RenewDeadline only. The server may grant a lease more time than
// requested (2 s at least by default). The record of a crashed leader then stays longer, and candidates take over once
// it has not changed for a LeaseDuration.
//
// # What it cannot guarantee
//
//   - client-go runs OnStartedLeading in a goroutine that it does not wait for, and ReleaseOnCancel releases while it
//     may still be running. If renewals fail it even releases before it cancels the context of OnStartedLeading.
//   - After the context of NewContext has ended with [ErrLost], the elector reports that it leads until its
//     RenewDeadline. Cancel the elector's context to stop it at once.
//   - controller-runtime gives Runnables the manager's context, not the elector's.
//   - If an operator deletes the record or revokes its lease, the next candidate can lead at once. The context of the
//     old leader ends at its elector's next call, within a RetryPeriod.
//   - A process that was paused finds its context done when it wakes up, but a write that was already on its way cannot
//     be stopped.
//   - LeaderTransitions starts again at 0 when a record has expired. Tokens do not.
//   - Coordinated leader election needs an API server.
//
// The fence makes all of these safe: a resource that checks the token (see package fence) refuses late writes.
//
// # Endpoints that do not answer
//
// etcd's client uses its endpoints in turn. Requests are hedged: after each quarter of its Timeout without an answer a
// call sends its request to another endpoint too, and the first answer counts. So a dead endpoint costs time, but not
// the leadership.
//
// A lease is renewed over streams that are kept for the tenure, since the server checks a client's password for each
// new stream.
//
// # What can fail
//
//	event                                        the call returns        and then
//	a single message lost                        success                 the write happens once; an unused lease expires
//	requests or answers of an acquisition lost   the error               its lease is revoked in the background: not acquired
//	the same, and the revocation fails too       the error               the record looks like another process's and expires
//	requests of a renewal lost                   the error               the next try renews
//	answers of a renewal lost                    the error               Get recognizes the record; the next try renews
//	context cancelled                            the error               as if the answers were lost
//	lease expired or revoked                     the error, or Conflict  tenure lost
//	record deleted, overwritten or taken over    Conflict                tenure lost at the next Get
//	record is not JSON                           the error of Get        nobody leads until it is deleted or expires
//	renewals fail until the local deadline       the error               tenure lost, by the local timer
//	release lost                                 the error               the record expires
//	etcd restored from a snapshot                -                       tokens go back: raise Options.Era
package k8slock
