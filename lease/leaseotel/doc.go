// Package leaseotel has OpenTelemetry metrics and traces of the sessions of package lease, of the elections on them, and of the
// resources where tokens are checked.
//
//	telemetry, err := leaseotel.New(leaseotel.Options{})
//	if err != nil {
//		return err
//	}
//	session, err := lease.NewSession(ctx, client, lease.Options{Hooks: telemetry.Hooks()})
//
// For one of the two alone, give [New] a provider of the package noop of the other. To have other hooks called too, use
// [lease.JoinHooks]. It imports OpenTelemetry's API, and no SDK.
//
// # Metrics
//
//	leasefence.acquisitions {acquisition}           kind, outcome   calls that have ended: granted, locked, canceled, lost, closed, error
//	leasefence.acquisitions_waiting {acquisition}   kind            calls that wait now
//	leasefence.acquisition.duration s               kind            of those that were granted
//	leasefence.locks_held {lock}                    kind            now
//	leasefence.lock.held s                          kind            of holds that have ended
//	leasefence.losses {lock}                        kind, reason    holds that were lost: deadline_passed, lease_gone, key_deleted,
//	                                                                key_overwritten, session_closed, revision_went_back
//	leasefence.renewal.duration s                                   round trips of the renewals
//	leasefence.renewal.attempts {attempt}                           the first ones and the others
//	leasefence.renewal.left s                                       until the deadline, when the last renewal came
//	leasefence.session.state                        state           1 for held, jeopardy or lost, 0 for the two others
//	leasefence.cleanup.keys {key}                                   keys that are to be deleted in the background
//	leader_election_master_status                   name            1 while this process leads, 0 while it does not
//	leader_election_slowpath_total {renewal}        name            renewals that took more than one attempt while it led
//	leasefence.tokens {token}                       mode, outcome   tokens that have come to resources to write or read: accepted,
//	                                                                stale, other_lock
//
// These are the metrics of package leaseprom. Where OpenTelemetry's become Prometheus's, with underscores for dots and with
// suffixes, as Prometheus itself takes them and its exporter does with UnderscoreEscapingWithSuffixes, the names and labels are
// the same, so leaseprom's dashboard and alert rules fit both. That is why their attributes have no prefix. The bounds of the
// histograms are leaseprom's too; a view of the SDK sets others. With [Options].Lock those with a kind have an attribute lock too.
//
// # Traces
//
// "acquire lock" is a span below that of the caller's context, "acquire leadership" and so on for the other kinds. An event says when
// it began to wait. Below it are, if the client has spans, the requests to etcd that are sent for it alone: no watch, and none that
// shares a commit with other acquisitions. "hold lock" is a span below it too, from the grant until the release or the loss.
// Their attributes:
//
//	leasefence.kind, leasefence.try, leasefence.queued
//	leasefence.outcome    of an acquisition as above; of a hold released, lost, or why the release is not confirmed
//	leasefence.reason     of a loss, as above
//	leasefence.token      decimal, as text: a number above 2^53 is rounded by many who read JSON
//	leasefence.grant      32 hex digits for the token and its lock; see below
//	leasefence.lock       from Options.SpanLock alone; with it also leasefence.key and leasefence.ahead, keys in etcd: the hold's and
//	                      the one that was waited for, which is the key of another process's hold
//
// The status is an error if the lock was lost, or not granted for an error: not if it was not free for one that does not wait, nor
// if the caller gave up, or closed the session. Its text is that of the error only with SpanLock, since errors name locks.
//
// The hold's span is there if that of the acquisition is sampled. It ends with the call of Released or Lost for it, one of which
// every hold has. One that has ended by itself and that nobody unlocks keeps its key, and counts as held, until its lease ends.
// Shut the SDK's providers down after [lease.Session.Close].
//
// # One token in several processes
//
// The process that holds a lock, and those of the resources that its token comes to, have the token and the lock's name in common,
// and nothing else: no trace context travels in etcd, and what is done under a lock that is held for days is many traces. So a
// grant has an ID that everybody can compute, a hash of the two. It is the attribute leasefence.grant of the acquisition, the
// hold and each span under which a resource of [Resources] has been asked, for search in any backend; and the context of a span
// that the hold and the span of a refused write link to, [Link]. The refused one links to the grant of the newer token too, by
// which it was refused, so that both holders are found from there. Spans of your own can join in:
//
//	span.AddLink(leaseotel.Link(lock, token)) // as fence.LockFromContext and fence.FromContext give them
//
// Of a link's span no backend has more than the link, for it stands for the grant in etcd, which sends no spans. The hold could be
// made a trace with that ID instead, so that the link opens it. But then it would be missing in the trace of the request that it
// is a part of, and be sampled apart from it, and each lock would be a trace of its own. The token alone would not do: one
// commit of etcd can grant several locks. Locks of the same name in two clusters are told apart by a prefix of the sessions. The
// hold of a lock set has a link for each name, and no attribute leasefence.grant. A token that has come without the name of
// its lock has neither.
//
// # Costs
//
// A lock and its unlock are two spans and five measurements, with about 12 allocations here. Those of an SDK are more than twice as
// many if the spans are sampled, and next to none if they are not. No call waits for a network, unless an exporter does. Whatever
// [Options].Lock returns is remembered as long as the [Telemetry] lives, as its time series are by the SDK.
package leaseotel
