// Package history records what happened in a run of the safety suite: which client asked for which lock and was granted
// it, what the resources accepted and refused, what a watch of the key space saw, and which faults were on.
//
// A history is a file of JSON lines, one [Event] each. All times are on one clock, CLOCK_MONOTONIC of the host, counted
// from the beginning of the run, so that the events of several processes can be compared.
//
// # Kinds of events
//
//	kind      by        at                                    fields
//	enter     caller    before Lock, RLock, Campaign, …       Op, Actor, Name, Verb (see below), With, Try, Value
//	grant     caller    after that has returned a handle      Op, Actor, Name, Verb, Token, Key
//	giveup    caller    after that has returned an error      Op, Outcome, Error
//	live      caller    before a call of Err returned nil     Op, Verb (see ByContext)
//	explained caller    after Explain has returned            Op, Error
//	lost      caller    after the handle's context has ended  Op, Error
//	release   caller    before Unlock, Resign                 Op, Verb (see Returned)
//	released  caller    after that has returned               Op, Outcome, Error
//	renewed   client    before the client gets the answer     Lease, Value (the time since the request was sent)
//	send      writer    before a request to a resource        Op, Actor, Name, Token, Verb, Value, Request
//	answer    writer    after its answer                      Request, Outcome, Value, Error
//	apply     resource  in the order of application           Name, Verb, Token, Request, Outcome, Value, Highest
//	put       watch     after the watch has delivered it      Key, Revision, Created, Lease
//	delete    watch     after the watch has delivered it      Key, Revision
//	observe   observer  after it has learned of a change      Actor, Name, Token (0: no leader), Outcome (see below)
//	fault     nemesis   before it begins                      Name, Target, Fault, Actor (if it is not the nemesis)
//	heal      nemesis   after it has ended                    Name, Target, Fault, Revision (of an operator's deletion)
//	note      anybody   at any time                           Name, Value
//
// Op joins the events of one acquisition, Request those of one request to a resource, Fault those of one fault. Each is
// unique in the run. A handle is known to be live from its grant to the last live event with its Op: the time of a live
// event is read before the handle is asked. Events of one resource are in the file in the order of application. Other
// events are in the order in which they were recorded, which may differ from the order of their times.
//
// The Verb of an enter event is [Campaign] for an election, [RLock] for a reader, and empty for a lock. The other kinds
// of locks have the verbs from [SetLock] on, and the same events. Requests have the verbs
// from [Claim] to [CheckRead]. A resource that gets an [Add] is a set: a read returns its elements in the order in which
// they were added, separated by commas. A fenced resource accepts no request without a token, except a [Read]. The
// Token of a [ClaimRead] or [CheckRead] and that of a reader's grant is the token of a read lock.
//
// The names of faults and notes that are constants have a meaning for the checkers. A grant has no Key if the caller does
// not learn it. An observer records the token without its era, and the Outcome [Failed] when it starts again. A history
// without [NoteEnd] counts as cut short: the checkers do not judge what should have come after its last event.
package history
