package history

import "strings"

// Names of faults that have a meaning for the checkers. Other faults may delay callers, but must not break an
// invariant.
const (
	// OperatorDeletes is the deletion of a key by an operator. The Target is the key. A Revision in the Heal event is
	// that of the deletion.
	OperatorDeletes = "operator deletes"

	// OperatorOverwrites is a write by an operator that takes a key off its lease. Its fields are those of
	// OperatorDeletes. The key is no longer a contender.
	OperatorOverwrites = "operator overwrites"

	// OperatorRevokes is the revocation of a lease by an operator. The Target is its ID in lower-case hex, as in the
	// keys.
	OperatorRevokes = "operator revokes"

	// Compaction discards events that a broken watch has missed. An observer does not see these.
	Compaction = "compaction"

	// Restored is a restore of the cluster from a snapshot, which takes revisions back.
	Restored = "restored from a snapshot"

	// ClientKilled ends a process. The Target is its client, see [Event.Client]. It also ends the acquisitions and
	// requests of that client that have no other end.
	ClientKilled = "client killed"
)

// Names of notes that have a meaning for the checkers.
const (
	NoteTTL    = "ttl"    // Value: the longest TTL that the server granted the Actor, or anybody, as time.Duration prints it
	NoteHealed = "healed" // all faults are healed: who waits now must be served in time
	NoteEra    = "era"    // all sessions are closed, and new ones begin the next era
	NoteStall  = "stall"  // Value: how long until now the process of the clients that are never killed or stopped did not run
	NoteEnd    = "end"    // the run is over: everything is closed, and the watch has delivered everything
)

// UnfencedMark ends the name of a resource that does not look at tokens, the control of the resource with the name
// before the mark. It gets the same requests with the same numbers. The checkers count how often it goes wrong.
const UnfencedMark = "#unfenced"

// PeerMark ends the name of a lock that only etcd's own mutex takes, as a control. A Live event says that its session
// was not done. The checkers count how often two hold it at a time.
const PeerMark = "#peer"

// Returned is the Verb of a Release event of Do or Run: the function has returned, and the lock must not have been
// released before. Without a Verb, the event says that Unlock or Resign is about to be called.
const Returned Verb = "returned"

// ByContext is the Verb of a Live event for which only the handle's context was checked: it was not done. The timer
// that ends the context may be a moment late.
const ByContext Verb = "context"

// What an acquisition asks for: the Verb of its Enter event. Without a Verb it asks for a lock.
const (
	RLock    Verb = "rlock"
	Campaign Verb = "campaign"
	SetLock  Verb = "setlock"  // of a set: Name, and the other names in With
	TreeLock Verb = "treelock" // of a node of a tree: Name is the name of its queue
	Permit   Verb = "permit"   // one of Value permits of the semaphore Name; the grant event has the name of the slot's queue
	Mutex    Verb = "mutex"    // etcd's own; a Live event says that its key existed
)

// Many reports whether an acquisition with that verb may have several keys or stand in several queues.
func (v Verb) Many() bool { return v == SetLock || v == TreeLock || v == Permit }

// Client returns the part of Actor that names the process: "client 3" of "client 3/worker 1".
func (e Event) Client() string {
	client, _, _ := strings.Cut(e.Actor, "/")
	return client
}
