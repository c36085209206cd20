package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// call is what a holder does with the token of a lock: a claim, a transaction in a form, or one after the other.
type call struct {
	claims string // the verb, or none
	how    form   // or none
	token  fence.Token
	lock   string
	below  string // the rest of the path in a tree, whose root is the resource
}

// In a tree, others meet the holder of ownPath. The holder of branch is on another branch.
const ownPath, branch = "/b", "/c"

func (c call) String() string {
	return strings.Join(strings.Fields(fmt.Sprint(c.claims, " ", string(c.how), " ", int64(c.token), " ", c.lock, c.below)), " ")
}

func (c call) verb() fencetest.Verb {
	return fencetest.Verb{
		Reads: c.how == checkRead || c.claims == "ClaimRead",
		Moves: c.claims == "Move",
		Looks: c.how == checkPath && c.claims == "" || c.below == branch,
	}
}

// state is what calls leave: the marks of the resource, or of ownPath in a tree, and the number of writes.
type state struct {
	marks fencetest.Marks
	n     int64
}

// next is the rule: it returns the state after a call, and what the call reads, or its refusal.
func (s state) next(c call) (_ state, read int64, err error) {
	v := c.verb()
	v.Reads = v.Reads || strings.HasPrefix(c.below, ownPath+"/") // a writer below is like a reader
	if s.marks, err = s.marks.After(v, c.token, c.lock, false); err != nil || c.how == "" {
		return s, 0, err
	}
	read = s.n
	if c.how != checkRead {
		s.n++
	}
	return s, read, nil
}

// act makes a call as the documents require: it claims a token that has to be claimed, and begins again after a conflict,
// unless the rig does nothing again. It returns what the transaction has read.
func (r *rig) act(t *testing.T, c call, resource string) (n int64, err error) {
	t.Helper()
	ctx, resource, claim := c.verb().Holder(as(t, c.token), c.token, c.lock), resource+c.below, r.claim
	switch {
	case c.verb().Reads:
		claim = r.claimRead
	case c.verb().Moves:
		claim = r.move
	case c.claims == "ClaimPath":
		claim = r.claimPath
	}
	if c.claims != "" {
		if err := claim(ctx, resource); err != nil || c.how == "" {
			return 0, err
		}
	}
	transaction := func() (err error) {
		n, err = r.incrementOn(ctx, resource, c.how)
		return err
	}
	if r.once {
		err = transaction()
	} else {
		err = persist(ctx, resource, claim, transaction)
	}
	return n, err
}

// persist repeats a transaction as the documents require: it claims a token that was not claimed, and begins again after
// a conflict.
func persist(ctx context.Context, resource string, claim func(context.Context, string) error, transaction func() error) error {
	for {
		err := transaction()
		if errors.Is(err, sqlfence.ErrUnclaimed) {
			if err = claim(ctx, resource); err == nil {
				continue
			}
		}
		if !transient(err) || ctx.Err() != nil {
			return err
		}
	}
}

// overlap makes calls, and lets another call come before one of their requests to the server.
type overlap struct {
	*rig // of the calls, which are not repeated

	r, hasty *rig // of others; hasty does not wait for locks on SQLite, which does not show who waits
	left     int  // requests until come is called
	come     func()
	requests map[[2]call]int // of a call after another, once they are known
}

func newOverlap(t *testing.T, r *rig, opts sqlfence.Options) *overlap {
	t.Helper()
	o := &overlap{r: r, hasty: r, requests: map[[2]call]int{}}
	if opts.Attempts = 50; r.dialect == sqlfence.SQLite {
		opts.Attempts = 1 // whoever takes the write lock first meets no conflict
		store := r.store
		store.dsn = strings.Replace(store.dsn, "busy_timeout(30000)", "busy_timeout(0)", 1)
		o.hasty = &rig{place: r.place, store: store, db: store.open(t), once: true}
		o.hasty.adapter = o.hasty.with(t, opts)
	}
	o.rig = r.hooked(t, opts, func(request string) error {
		if request == "rollback" {
			return nil
		}
		if o.left--; o.left == 0 {
			o.come()
		}
		return nil
	})
	o.once = true
	return o
}

// launch calls a function, and returns when it waits for a lock or has returned. SQLite does not show who waits.
func (r *rig) launch(call func() error) (_ chan error, waits bool) {
	answer := make(chan error, 1)
	go func() { answer <- call() }()
	for len(answer) == 0 {
		if r.dialect != sqlfence.SQLite && r.waiting() {
			return answer, true
		}
		time.Sleep(time.Millisecond)
	}
	return answer, false
}

// meets makes two calls, the second at each request of the first, after had. The second waits for the first, or returns
// meanwhile. The results, the marks and the data are those of one of the two orders: what has returned meanwhile came
// first, unless it was refused.
func (o *overlap) meets(t *testing.T, had, own, comes call) {
	t.Helper()
	name := fmt.Sprintf("%s, then %s and %s", had, own, comes)
	last, known := o.requests[[2]call{had, own}]
	for nth := 1; !t.Failed() && (!known || nth <= last); nth++ {
		t.Run(fmt.Sprint(name, ", request ", nth), func(t *testing.T) {
			if !o.meetsAt(t, nth, had, own, comes) {
				last, known = nth-1, true
				o.requests[[2]call{had, own}] = last
			}
		})
	}
}

var meetings atomic.Int64 // makes names of resources unique

func (o *overlap) meetsAt(t *testing.T, nth int, had, own, comes call) (met bool) {
	t.Helper()
	resource := fmt.Sprint("resource ", meetings.Add(1))
	o.r.must(t, "UPDATE data SET n = 0, last = 0, stale = 0 WHERE id = 1")
	var before state
	if had.claims != "" {
		_, err := o.r.act(t, had, resource)
		require.NoError(t, err)
		before, _, _ = before.next(had)
	}
	var answer chan error
	var waited bool
	var arrivedN int64
	other := func(r *rig) (err error) {
		arrivedN, err = r.act(t, comes, resource)
		return err
	}
	o.left, o.come = nth, func() { answer, waited = o.r.launch(func() error { return other(o.hasty) }) }
	n, err := o.act(t, own, resource)
	if answer == nil {
		return false
	}
	arrived := <-answer
	if o.dialect == sqlfence.SQLite && transient(arrived) {
		arrived, waited = other(o.r), true
	}
	after, wantN, want := before.next(own)
	end, wantArrivedN, wantArrived := after.next(comes)
	keepsSnapshot := own.how == checkRead && o.journal == "wal"
	if nth == 1 || (err == nil) != (want == nil) || !waited && wantArrived == nil && !keepsSnapshot {
		after, wantArrivedN, wantArrived = before.next(comes)
		end, wantN, want = after.next(own)
	}
	node := resource + own.below
	if comes.below == "" {
		node = resource
	}
	if own.how.checks() && transient(err) { // the caller begins again, and is refused then or reads what the other has written
		// On MySQL a guard that finds no mark locks the gap, so that two calls may end in a deadlock. A path's claim may have
		// changed the marks above before it waits.
		require.True(t, !waited || own.below != "" || o.dialect == sqlfence.MySQL && had.claims == "", "a transaction that the other waits for: %v", err)
		end = after
	} else {
		fencetest.RequireRefusal(t, want, err, node, "the call")
		require.True(t, err != nil || n == wantN, "the call has read %d", n)
	}
	fencetest.RequireRefusal(t, wantArrived, arrived, resource, "the other call")
	require.True(t, arrived != nil || arrivedN == wantArrivedN, "the other call has read %d", arrivedN)
	got := o.r.row(t)
	require.Equal(t, row{n: end.n, last: got.last}, got)
	if comes.below == branch && o.dialect == sqlfence.PostgreSQL && !o.snapshots() {
		require.False(t, waited, "a claim of another branch has waited")
	}
	if own.below == "" {
		require.Equal(t, end.marks, o.r.marks(t, resource).Normal())
	}
	if own.claims == "Claim" { // with an audit trail
		tenures, refusals := history(t, o.r, sqlfence.Query{Resource: resource})
		has := func(tenure audit.Tenure) bool { return tenure.Token == own.token }
		require.Equal(t, err == nil, slices.ContainsFunc(tenures, has), "a claim has a tenure unless it was refused")
		require.Equal(t, errors.Is(err, fence.ErrStale), len(refusals) == 1)
	}
	// The announcement of a claim that was refused refuses nobody.
	for c, refusal := range map[call]error{comes: err, own: arrived} {
		if errors.Is(refusal, fence.ErrOtherLock) {
			_, err := o.r.act(t, c, resource)
			require.NoError(t, err, "a claim that was refused is announced")
		}
	}
	return true
}

// Another holder comes at every request of a holder's transaction: a newer writer or reader, with and without a claim, one
// of another lock, one that moves the resource to its lock, or the same holder in a plain form. It waits for the
// transaction and reads what that has written.
func TestMarks_overlap(t *testing.T) {
	comers := []call{
		{claims: "Claim", how: do, token: newer},
		{claims: "Move", how: do, token: newer, lock: "ledger"},
		{claims: "ClaimRead", how: checkRead, token: newer},
		{how: checkRead, token: newer},
		{claims: "Claim", token: newer, lock: "report"},
		{how: do, token: older},
		{how: check, token: older},
	}
	at(t, places, func(t *testing.T, r *rig) {
		o := newOverlap(t, r, sqlfence.Options{})
		comers := slices.Clone(comers)
		for _, how := range r.forms() {
			comers = append(comers, call{how: how, token: newer})
		}
		for _, how := range append(r.forms(), checkRead) {
			for _, comes := range comers {
				had, own, reads := call{claims: "Claim", token: older}, call{how: how, token: older}, how == checkRead
				same := comes.token == older
				switch {
				case reads && (comes.how == checkRead || comes.lock == "report" || same): // readers refuse nobody that is newer
				case same && comes.how == check && how.shared() && r.snapshots(): // a documented limit
				case comes.lock == "report":
					own.lock = "accounts"
					o.meets(t, had, own, comes)
					had.lock = "accounts"
					o.meets(t, had, own, comes)
				default:
					if reads {
						had.claims = "ClaimRead"
					}
					o.meets(t, had, own, comes)
					// A Do begins with a claim, see TestMarks_overlapOfClaims. With a snapshot a check needs a claim.
					if how.checks() && !r.snapshots() && !same {
						o.meets(t, call{}, own, comes)
					}
				}
			}
		}
	})
}

// Another claim comes at every request of a claim, with an audit trail. The claim that was refused raises nothing and has
// no tenure.
func TestMarks_overlapOfClaims(t *testing.T) {
	at(t, append(each, pgxPlace), func(t *testing.T, r *rig) {
		audited(t, r)
		o := newOverlap(t, r, sqlfence.Options{Log: sqlfence.DefaultLog})
		for _, pair := range [][2]call{
			{{claims: "Claim", token: older}, {claims: "Claim", token: newer}},
			{{claims: "Claim", token: older}, {claims: "ClaimRead", token: newer}},
			{{claims: "ClaimRead", token: older}, {claims: "Claim", token: newer}},
			{{claims: "Claim", token: newer, lock: "report"}, {claims: "Claim", token: older, lock: "accounts"}},
			{{claims: "ClaimRead", token: newer, lock: "report"}, {claims: "Claim", token: older, lock: "accounts"}},
		} {
			o.meets(t, call{}, pair[0], pair[1])
			o.meets(t, call{claims: pair[0].claims, token: 5}, pair[0], pair[1])
		}
	})
}

// A newer holder of the node above, the same node, a node below or another branch comes at every request of a path's
// transaction.
func TestMarks_overlapOfPaths(t *testing.T) {
	at(t, places, func(t *testing.T, r *rig) {
		o := newOverlap(t, r, sqlfence.Options{})
		for _, comes := range []call{{below: "", how: checkPath}, {below: ownPath, how: checkPath}, {below: ownPath + "/c", how: checkPath}, {below: branch}} {
			comes.claims, comes.token = "ClaimPath", newer
			had := call{claims: "ClaimPath", token: older, below: ownPath}
			o.meets(t, had, call{how: checkPath, token: older, below: ownPath}, comes)
		}
	})
}

// requireOutcome compares the result of a transaction with the rule. Where it is to be refused, that of a check may have
// failed instead: the caller begins again, and is refused then.
func requireOutcome(t *testing.T, want, err error, how form) {
	t.Helper()
	if want == nil || !how.checks() || !transient(err) {
		fencetest.RequireRefusal(t, want, err, resource, string(how))
	}
}

// stale is the refusal of the older writer by the newer one, or by a newer reader.
func stale(byReader bool) error {
	return &fence.StaleError{Token: older, Highest: newer, ByReader: byReader}
}

// staleReader is the refusal of the older reader by the newer writer.
func staleReader() error { return &fence.StaleError{Token: older, Highest: newer, Read: true} }
