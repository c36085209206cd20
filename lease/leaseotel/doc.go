// Package leaseotel has OpenTelemetry metrics and traces of the sessions of package lease, of the elections on them,
// and of the resources where tokens are checked.
//
//	telemetry, err := leaseotel.New(leaseotel.Options{})
//	if err != nil {
//		return err
//	}
//	session, err := lease.NewSession(ctx, client, lease.Options{Hooks: telemetry.Hooks()})
//
// For metrics or traces alone, give [New] a noop provider of the other. To add other hooks, use [lease.JoinHooks]. The
// package imports OpenTelemetry's API, and no SDK.
//
// # Metrics
//
//	leasefence.acquisitions {acquisition}           kind, outcome   calls that have ended: granted, locked, canceled, lost, closed, error
//	leasefence.acquisitions_waiting {acquisition}   kind            calls that wait now
//	leasefence.acquisition.duration s               kind            time to the grant, of calls that were granted
//	leasefence.locks_held {lock}                    kind            locks that are held now
//	leasefence.lock.held s                          kind            time held, of holds that have ended
//	leasefence.losses {lock}                        kind, reason    holds that were lost: deadline_passed, lease_gone, key_deleted,
//	                                                                key_overwritten, session_closed, revision_went_back
//	leasefence.renewal.duration s                                   round trips of the renewals
//	leasefence.renewal.attempts {attempt}                           attempts of the renewals, retries included
//	leasefence.renewal.left s                                       time until the deadline when the last renewal was acknowledged
//	leasefence.session.state                        state           1 for the present state of held, jeopardy and lost, 0 for the others
//	leasefence.cleanup.keys {key}                                   keys that are to be deleted in the background
//	leader_election_master_status                   name            1 while this process leads, 0 while it does not
//	leader_election_slowpath_total {renewal}        name            renewals that took more than one attempt while it led
//	leasefence.tokens {token}                       mode, outcome   tokens of writes and reads at resources: accepted, stale, other_lock
//
// These are the metrics of package leaseprom. Prometheus itself, and OpenTelemetry's exporter for it with
// UnderscoreEscapingWithSuffixes, turn dots into underscores and add suffixes. The names and labels are then
// leaseprom's, so its dashboard and alert rules fit both. That is why the attributes have no prefix. The bounds of the
// histograms are leaseprom's too; use a view of the SDK to set others. With [Options].Lock the metrics with a kind have
// an attribute lock too.
//
// # Traces
//
// "acquire lock", or "acquire leadership" and so on for the other kinds, is a child span of the caller's. An event
// marks the beginning of the wait. If the client has spans, its child spans are the requests to etcd that are sent for
// this acquisition alone: no watches, and no requests that share a commit with other acquisitions. Another child span
// is "hold lock", from the grant until the release or the loss. Their attributes:
//
//	leasefence.kind, leasefence.try, leasefence.queued
//	leasefence.outcome    of an acquisition as above; of a hold released, lost, or why the release is not confirmed
//	leasefence.reason     of a loss, as above
//	error.type            the outcome, if the status is an error
//	leasefence.token      decimal, as text, since many readers of JSON round numbers above 2^53
//	leasefence.grant      32 hex digits for the token and its lock; see below
//	leasefence.lock       only with Options.SpanLock
//	leasefence.key        only with Options.SpanLock: the hold's key in etcd
//	leasefence.ahead      only with Options.SpanLock: the key waited for, which is the key of another process's hold
//
// The status is an error if the lock was lost, or if the acquisition failed. It is no error if a try found the lock
// taken, or if the caller gave up or closed the session. The status has the error's text only with SpanLock, since
// errors name locks.
//
// The hold's span exists if the span of the acquisition is sampled. It ends when package lease calls the hook Released
// or Lost: it calls one of them for every hold. A hold whose context has ended by WithMaxHold or a request to release,
// and which nobody unlocks, keeps its key, and counts as held, until its lease ends. Shut the SDK's providers down
// after [lease.Session.Close].
//
// # One token in several processes
//
// The process that holds a lock and the processes of the resources that check its token share the token and the lock's
// name, and nothing else: etcd carries no trace context, and the work under a lock that is held for days is many
// traces. So each grant has an ID that every process can compute, a hash of the token and the name. It is used twice:
//
//   - as the attribute leasefence.grant of the acquisition, of the hold, and of each span under which a resource of
//     [Resources] has checked the token, to search for in any backend;
//   - as the span context of a [Link], which the hold and the span of a refused write have. The span of a refused write
//     has a second link, to the grant of the newer token, so that it leads to both holders.
//
// Your own spans can have the link too:
//
//	span.AddLink(leaseotel.Link(lock, token)) // as fence.LockFromContext and fence.FromContext give them
//
// The span that a link names does not exist: it stands for the grant, and etcd sends no spans. So a backend cannot open
// the link; search for its trace ID instead. The token alone is not enough: one commit of etcd can grant several locks.
// Tell locks of the same name in two clusters apart by a prefix of the sessions. The hold of a lock set has a link for
// each name, and no attribute leasefence.grant. A token that comes without the name of its lock has neither.
//
// # Costs
//
// A lock and its unlock are two spans and five measurements, with about 12 allocations in this package. An SDK adds
// more than twice as many if the spans are sampled, and next to none if they are not. No call waits for a network,
// unless an exporter does. The [Telemetry] keeps each value that [Options].Lock returns as long as it lives, as the SDK
// keeps its time series.
package leaseotel
