package fakeetcd

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Method is a kind of request.
type Method uint8

// The methods. Each Send on a keep-alive stream is one KeepAliveOnce, and each creation of a watch, the client's own
// resumptions included, is one Watch.
const (
	Any Method = iota // every method except WatchEvents
	Get
	Put
	Delete
	Txn
	Compact
	Grant
	KeepAliveOnce
	Revoke
	TimeToLive
	Watch
	WatchEvents // the events sent to an established watch: no request, never recorded; only Match, Times, After and OnAnswer apply
)

var methodNames = [...]string{
	"Any", "Get", "Put", "Delete", "Txn", "Compact", "Grant", "KeepAliveOnce", "Revoke", "TimeToLive", "Watch", "WatchEvents",
}

// String returns the constant's name.
func (m Method) String() string { return methodNames[m] }

// Call is the record of one request.
type Call struct {
	Client   *Client
	Method   Method
	Endpoint string    // of the keep-alive stream that carries it; empty for the client's own connection
	Request  any       // the protobuf request, such as *pb.TxnRequest; for WatchEvents the response. Not to be changed
	Sent     time.Time // when the client sent it
	Acted    time.Time // when the server acted on it; zero: it has not
	Answered time.Time // when the answer, or the error in its place, reached a caller that was still there; zero: it has not
	Err      error     // the gRPC error that was answered
}

// Message is one of the two messages of a call.
type Message uint8

// The messages that a fault can lose.
const (
	None Message = iota
	Request
	Answer
)

// ErrUnavailable is what a client sees when its connection breaks.
var ErrUnavailable = status.Error(codes.Unavailable, "transport is closing")

// Fault says what the network does to a call. The zero value does nothing to every call.
type Fault struct {
	Match func(Call) bool // which calls; nil: all of the method. It must not call the server or a client
	Times int             // how many calls; 0: every one until the fault is removed

	Before time.Duration   // the request is under way this long before the server acts
	Until  <-chan struct{} // after Before, the request is held until this is closed; nil: it is not
	After  time.Duration   // the answer is under way this long

	// Late lets the request outlive its caller: the server acts on it, once Before, Until and a cut are over, even
	// if the caller's context has ended or its client is closed. Otherwise a request under way ends with its caller.
	Late bool

	// Twice lets the request reach the server a second time, right after the first. The answer is that to the second, as it
	// is where a proxy on the way repeats requests. It is not for Watch, whose request is one of a stream.
	Twice bool

	// Lose loses one of the messages. With Answer the server has acted. The caller then waits until its
	// context ends, or gets Err: after Before for a lost request, after After for a lost answer.
	Lose Message
	Err  error // a gRPC status error, such as ErrUnavailable; without Lose it means that the request is lost

	// OnRequest and OnAnswer are called, if not nil, at an exact moment: when the request has been under way for Before and
	// Until, and when the server has acted. The call goes on when they return; they may call the server and the client. Of
	// WatchEvents OnAnswer alone is called, when the server has sent the events and beside what happens to them then.
	OnRequest, OnAnswer func()
}

// retryPause stands for the back-off of the real client, 25 ms give or take a tenth. It divides no round timeout, so that
// a call that repeats until its deadline does not end in a tie of the two.
const retryPause = 23 * time.Millisecond

// on adapts a fault to the method it has hit.
func (f Fault) on(m Method) Fault {
	if f.Err != nil && f.Lose == None {
		f.Lose = Request
	}
	if f.Err != nil && (m == KeepAliveOnce || m == Watch) && f.Before+f.After < retryPause {
		if f.Lose == Request {
			f.Before = retryPause
		} else {
			f.After = retryPause
		}
	}
	return f
}

type rule struct {
	method Method
	fault  Fault
	left   int // calls, for a fault with Times
}

func (r *rule) matches(c Call) bool {
	if r.method != c.Method && (r.method != Any || c.Method == WatchEvents) {
		return false
	}
	return r.fault.Match == nil || r.fault.Match(c)
}

// Inject makes the network do f to the client's calls of method m, and returns a function that removes it.
// A call meets at most one fault: of those with Times the first injected, else of those without the last injected.
func (c *Client) Inject(m Method, f Fault) (remove func()) {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	r := &rule{method: m, fault: f, left: f.Times}
	c.rules = append(c.rules, r)
	return func() {
		c.srv.mu.Lock()
		defer c.srv.mu.Unlock()
		c.rules = slices.DeleteFunc(c.rules, func(o *rule) bool { return o == r })
	}
}

// Reset removes every fault. Calls under way keep theirs, and a cut stays.
func (c *Client) Reset() {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	c.rules = nil
}

// pick finds the fault for a call and counts it. The caller holds the server's mutex.
func (c *Client) pick(call Call) (Fault, bool) {
	for i, r := range c.rules {
		if r.fault.Times == 0 || !r.matches(call) {
			continue
		}
		r.left--
		if r.left == 0 {
			c.rules = slices.Delete(slices.Clone(c.rules), i, i+1)
		}
		return r.fault.on(call.Method), true
	}
	for _, r := range slices.Backward(c.rules) {
		if r.fault.Times == 0 && r.matches(call) {
			return r.fault.on(call.Method), true
		}
	}
	return Fault{}, false
}
