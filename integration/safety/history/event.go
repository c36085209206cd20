package history

import (
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

// Claims reports whether the verb only raises the mark of the resource.
func (v Verb) Claims() bool { return v == Claim || v == ClaimRead }

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
