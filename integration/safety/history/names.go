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

	// Compaction discards what a watch that is broken has missed: an observer does not see it.
	Compaction = "compaction"

	// ClientKilled ends a process. The Target is its client, see [Event.Client]; acquisitions and requests of that client
	// that have no end have ended then.
	ClientKilled = "client killed"
)

// Names of notes that the checkers know.
const (
	NoteTTL   = "ttl"   // Value: the longest TTL that the server has granted, as time.Duration prints it
	NoteStall = "stall" // Value: how long the process of all clients but the killed and stopped ones did not run until now
	NoteEnd   = "end"   // the run is over: everything is closed, and the watch has come to the end
)

// UnfencedMark ends the name of a resource that does not look at tokens. It gets the requests of the resource whose name
// stands before the mark, with the same numbers, and is there to go wrong: the checkers count how often it did.
const UnfencedMark = "#unfenced"

// Returned is the Verb of a Release event of a scoped form, Do or Run: the function has returned, and only then is the
// lock to be released. None: Unlock or Resign is about to be called.
const Returned Verb = "returned"

// ByContext is the Verb of a Live event for which only the handle's context was looked at: it was not done. A timer ends it,
// which may be a moment late.
const ByContext Verb = "context"

// What an acquisition asks for, in the Verb of its Enter event. None: Lock.
const (
	TryLock   Verb = "trylock"
	RLock     Verb = "rlock"
	TryRLock  Verb = "tryrlock"
	Campaign  Verb = "campaign"
	SetLock   Verb = "setlock" // of a set: Name, and the other names in With
	TrySet    Verb = "tryset"
	TreeLock  Verb = "treelock" // of a node of a tree: Name is that of its queue
	TryTree   Verb = "trytree"
	Permit    Verb = "permit" // of the semaphore Name, which has Value; the Name of the grant event is that of the slot's queue
	TryPermit Verb = "trypermit"
	Mutex     Verb = "mutex" // etcd's own; it is live where its key was there when it was asked for
)

// Shared reports whether an acquisition with that verb is a reader's.
func (v Verb) Shared() bool { return v == RLock || v == TryRLock }

// Tries reports whether an acquisition with that verb does not wait.
func (v Verb) Tries() bool {
	return v == TryLock || v == TryRLock || v == TrySet || v == TryTree || v == TryPermit
}

// OfSet reports whether an acquisition with that verb is of a set.
func (v Verb) OfSet() bool { return v == SetLock || v == TrySet }

// OfTree reports whether it is of a node of a tree.
func (v Verb) OfTree() bool { return v == TreeLock || v == TryTree }

// OfPermit reports whether it is of a permit.
func (v Verb) OfPermit() bool { return v == Permit || v == TryPermit }

// Many reports whether an acquisition with that verb may have several keys, or stands in several queues.
func (v Verb) Many() bool { return v.OfSet() || v.OfTree() || v.OfPermit() }

// Client is the part of the actor's name that stands for its process: "client 3" of "client 3/worker 1".
func (e Event) Client() string {
	client, _, _ := strings.Cut(e.Actor, "/")
	return client
}
