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

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

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

// Clock counts from the beginning of a run, which is its value. It reads CLOCK_MONOTONIC, so all processes of the host
// can use the same Clock.
type Clock time.Duration

// NewClock returns a clock of a run that begins now.
func NewClock() Clock { return Clock(monotonic()) }

// Now returns the time since the beginning of the run.
func (c Clock) Now() time.Duration { return monotonic() - time.Duration(c) }

// monotonic reads the clock that all processes of the host share. Go's monotonic times have no meaning in other
// processes.
func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail: the clock is there, the pointer valid
	return time.Duration(ts.Nano())
}

// Recorder writes a history. It is safe for concurrent use.
type Recorder struct {
	Clock
	// Seen, if set, is called with each event, also with those that are dropped.
	Seen func(Event)

	ids atomic.Int64
	mu  sync.Mutex // guards the fields below
	out io.Writer  // nil: events are dropped
	err error      // the first of out
}

// NewRecorder returns a recorder that writes to w, see [Recorder.To]. The numbers of [Recorder.ID] begin above first:
// each process of a run has a range of its own.
func NewRecorder(w io.Writer, clock Clock, first int64) *Recorder {
	r := &Recorder{Clock: clock, out: w}
	r.ids.Store(first)
	return r
}

// To makes the recorder write to w from now on. If w is nil, events are dropped. To returns the first error of the
// writer before.
func (r *Recorder) To(w io.Writer) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.err
	r.out, r.err = w, nil
	return err
}

// ID returns a new number for an Op, a Request or a Fault.
func (r *Recorder) ID() int64 { return r.ids.Add(1) }

// Record writes an event at once, so that little is lost when the process is killed. If the event's At is 0, Record
// sets it to the present time.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.At == 0 {
		e.At = r.Now()
	}
	if r.Seen != nil {
		r.Seen(e)
	}
	if r.out != nil && r.err == nil {
		r.err = json.NewEncoder(r.out).Encode(e)
	}
}

// Scan yields the events of a history one by one, and stops at the first error. It skips an incomplete last line, which
// a killed process may leave.
func Scan(src io.Reader) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		dec := json.NewDecoder(src)
		dec.DisallowUnknownFields()
		for n := 1; ; n++ {
			var e Event
			err := dec.Decode(&e)
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return
			}
			if err != nil {
				yield(Event{}, fmt.Errorf("history: event %d: %w", n, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// ReadFile returns all events of the history in a file, none if there is an error.
func ReadFile(path string) (all []Event, err error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for e, err := range Scan(f) {
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}
