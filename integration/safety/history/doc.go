// Package history records what happened in a run of the safety suite: which client asked for which lock and was granted it,
// what the resource accepted and refused, what a watch of the key space saw, and which faults were on.
//
// A history is a file of JSON lines, one [Event] each. All times are on one clock, CLOCK_MONOTONIC of the host, counted
// from the beginning of the run, so that the events of several processes can be compared.
//
// # What the kinds say
//
//	kind      by        at                                    fields
//	enter     caller    before Lock, RLock, Campaign, …       Op, Actor, Name, Verb (see below), With, Value
//	grant     caller    after it has returned a handle        Op, Actor, Name, Token, Key
//	giveup    caller    after it has returned an error        Op, Outcome, Error
//	live      caller    before a call of Err that gave nil    Op, Verb (see ByContext)
//	lost      caller    after the handle's context has ended  Op, Error
//	release   caller    before Unlock, Resign                 Op, Verb (see Returned)
//	released  caller    after it has returned                 Op, Outcome, Error
//	renewed   client    before it is given the answer         Lease, Value (how long before that it was asked for)
//	send      writer    before a request to a resource        Op, Actor, Name, Token, Verb, Value, Request
//	answer    writer    after its answer                      Request, Outcome, Value, Error
//	apply     resource  in the order of application           Name, Verb, Token, Request, Outcome, Value, Highest
//	put       watch     after the event has come in           Key, Revision, Created, Lease
//	delete    watch     after the event has come in           Key, Revision
//	observe   observer  after a change has come in            Actor, Name, Token (0: nobody leads), Outcome (Failed: it begins anew)
//	fault     nemesis   before it begins                      Name, Target, Fault, Actor (if it is somebody else's doing)
//	heal      nemesis   after it has ended                    Name, Target, Fault, Revision (of an operator's deletion)
//	note      anybody   whenever                              Name, Value
//
// Op joins the events of one acquisition, Request those of one request to a resource, Fault those of one fault; each is
// unique in the run. A handle is known to be live from its grant to the last live event with its Op; the time of a live event
// is read before the handle is asked. Events of one resource stand in the file in the order of application. Other events stand
// in the order in which they came in, which may differ from that of their times.
//
// The Verb of an enter event is [Campaign] for an election, [RLock] or [TryRLock] for a reader, [TryLock] or none for a lock,
// and one of those from [SetLock] on for the other kinds, whose events are the same. Requests have the other verbs. A resource
// that gets an Add is a set: a read returns its elements, separated by commas. A fenced resource accepts no request without a
// token, except a [Read]. A Token is that of a read lock where the verb is [ClaimRead] or [CheckRead], and in the grant event
// of a reader.
//
// Some names of faults and notes have a meaning for the checkers: [OperatorDeletes], [OperatorOverwrites], [OperatorRevokes],
// [ClientKilled], [Compaction], [NoteTTL], [NoteStall], [NoteEnd]. A resource may be the control of another, see
// [UnfencedMark]. A grant has no Key where the caller does not learn it. An observer gives the token that etcd knows, in era 0.
// A history without NoteEnd counts as cut short, and the checkers do not judge what should have come after its last event.
package history
