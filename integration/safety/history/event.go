package history

import (
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// Kind is the kind of an event. The package's doc has the table.
type Kind string

// The kinds.
const (
	Enter     Kind = "enter"
	Grant     Kind = "grant"
	GiveUp    Kind = "giveup"
	Live      Kind = "live"
	Explained Kind = "explained"
	Lost      Kind = "lost"
	Release   Kind = "release"
	Released  Kind = "released"
	Renewed   Kind = "renewed"

	Send   Kind = "send"
	Answer Kind = "answer"
	Apply  Kind = "apply"

	Put     Kind = "put"
	Delete  Kind = "delete"
	Observe Kind = "observe"

	Fault Kind = "fault"
	Heal  Kind = "heal"
	Note  Kind = "note"
)

// Outcome is what a caller knows of its call, or what a resource did with a request.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"      // done
	Refused Outcome = "refused" // the resource refused the token, or the lock was taken: nothing was done
	Failed  Outcome = "failed"  // nothing was done, for another reason
	Unknown Outcome = "unknown" // it may have been done
)

// Verb is what a request asks of a resource.
type Verb string

// The verbs.
const (
	Claim     Verb = "claim"     // makes the resource refuse lower tokens
	Read      Verb = "read"      // returns Value
	Write     Verb = "write"     // sets the register to Value
	Add       Verb = "add"       // adds Value to the set
	Increment Verb = "increment" // a read-modify-write: sets the counter to Value, which is one more than was read

	// The requests of readers have the token of a read lock.
	ClaimRead Verb = "claimread" // makes the resource refuse lower tokens of writers
	CheckRead Verb = "checkread" // returns Value, if the token is not stale
)

// Reads reports whether the verb only returns the value.
func (v Verb) Reads() bool { return v == Read || v == CheckRead }

// Updates reports whether the verb changes the value.
func (v Verb) Updates() bool { return v == Write || v == Add || v == Increment }

// OfReader reports whether a request with that verb has the token of a read lock.
func (v Verb) OfReader() bool { return v == ClaimRead || v == CheckRead }

// Event is one line of a history. Fields that a kind does not use are zero.
type Event struct {
	At   time.Duration `json:"at"` // since the beginning of the run
	Kind Kind          `json:"kind"`

	Actor   string      `json:"actor,omitempty"` // "client 3/worker 1"
	Name    string      `json:"name,omitempty"`  // of the lock, election or resource, or of the kind of fault or note
	Op      int64       `json:"op,omitempty"`
	Request int64       `json:"request,omitempty"`
	Fault   int64       `json:"fault,omitempty"`
	Token   fence.Token `json:"token,omitempty"`
	Outcome Outcome     `json:"outcome,omitempty"`
	Error   string      `json:"error,omitempty"`

	With []string `json:"with,omitempty"` // the other names of a set
	Try  bool     `json:"try,omitempty"`  // the acquisition does not wait

	Verb    Verb        `json:"verb,omitempty"`
	Value   string      `json:"value,omitempty"`
	Highest fence.Token `json:"highest,omitempty"` // the resource's mark after the request

	Key      string `json:"key,omitempty"`
	Revision int64  `json:"revision,omitempty"` // of the change
	Created  int64  `json:"created,omitempty"`  // the key's create revision
	Lease    int64  `json:"lease,omitempty"`

	Target string `json:"target,omitempty"` // of a fault: "client 3", "member 1"
}

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

	// SlowCluster is a commit that took long though no fault was aimed at the cluster.
	SlowCluster = "slow cluster"

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
	NotePeace  = "peace"  // nobody waits, and from now on the only faults are those of operators and those that tell their targets
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
