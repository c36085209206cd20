package history

import "strings"

// Names of faults that the checkers know. Any other fault must not be noticed at all.
const (
	// OperatorDeletes is the deletion of a key by somebody who may. The Target is the key; where the Heal event has a Revision,
	// it is that of the deletion.
	OperatorDeletes = "operator deletes"

	// OperatorOverwrites is a write that takes a key off its lease, as OperatorDeletes its deletion. The key is not a contender
	// from then on.
	OperatorOverwrites = "operator overwrites"

	// OperatorRevokes is the revocation of a lease. The Target is its ID in lower-case hex, as it stands in the keys.
	OperatorRevokes = "operator revokes"

	// ClientKilled ends a process. The Target is its client, see [Event.Client]; acquisitions and requests of that client
	// that have no end have ended then.
	ClientKilled = "client killed"
)

// Names of notes that the checkers know.
const (
	NotePrefix = "prefix" // Value: lease.Options.Prefix, at the beginning of the run
	NoteTTL    = "ttl"    // Value: the longest TTL that the server has granted, as time.Duration prints it
	NoteEnd    = "end"    // the run is over: everything is closed, and the watch has come to the end
)

// UnfencedMark ends the name of a resource that does not look at tokens. It gets the requests of the resource whose name
// stands before the mark, with the same numbers, and is there to go wrong: the checkers count how often it did.
const UnfencedMark = "#unfenced"

// What an acquisition asks for, in the Verb of its Enter event. None: Lock.
const (
	TryLock  Verb = "trylock"
	Campaign Verb = "campaign"
)

// Client is the part of the actor's name that stands for its process: "client 3" of "client 3/worker 1".
func (e Event) Client() string {
	client, _, _ := strings.Cut(e.Actor, "/")
	return client
}
