package etcdfence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// A verb sees what changes the mark before its first or its second transaction: a newer or an older writer or reader,
// another lock, a move, a new name, or the loss of the name. The holder has token 41 of the lock accounts, or without a
// name.
func TestMarks_interleaved(t *testing.T) {
	const (
		accounts = " accounts"
		report   = " report"
	)
	other := func(token fence.Token, lock, follows string) error {
		return &fence.OtherLockError{Resource: "r", Token: token, Lock: lock, Follows: follows}
	}
	reader := &fence.OtherLockError{Resource: "r", Token: 41, Read: true, Lock: "accounts", Follows: "report"}
	newer := &fence.StaleError{Resource: "r", Token: 41, Highest: 54}
	for name, tt := range map[string]struct {
		verb            string
		at              int    // the transaction before which the mark changes
		before, between string // values of the mark; "" for none
		after           string
		requests        int
		refused         error
	}{
		"absent, older between":    {"unnamed", 2, "", value(7, 0), value(41, 0), 3, nil},
		"absent, same between":     {"unnamed", 2, "", value(41, 0), value(41, 0), 3, nil},
		"absent, newer between":    {"unnamed", 2, "", value(54, 0), "", 2, newer},
		"lower, older between":     {"unnamed", 2, value(3, 0), value(7, 0), value(41, 0), 3, nil},
		"lower, same between":      {"unnamed", 2, value(3, 0), value(41, 0), value(41, 0), 3, nil},
		"lower, newer between":     {"unnamed", 2, value(3, 0), value(54, 0), "", 2, newer},
		"lower, the same value":    {"unnamed", 2, value(3, 0), value(3, 0), value(41, 0), 3, nil},
		"lower, malformed between": {"unnamed", 2, value(3, 0), "7", "", 2, etcdfence.ErrMalformedMark},

		"a reader, the first mark":  {"unnamed reader", 1, "", value(7, 0), value(7, 41), 3, nil},
		"a reader, an older reader": {"unnamed reader", 1, value(7, 0), value(7, 20), value(7, 41), 3, nil},
		"a reader, a newer reader":  {"unnamed reader", 1, value(7, 0), value(7, 54), value(7, 54), 2, nil},
		"a reader, an older writer": {"unnamed reader", 1, value(7, 0), value(20, 0), value(20, 41), 3, nil},
		"a reader, a newer writer": {
			"unnamed reader", 1, value(7, 0), value(54, 0), "", 2, &fence.StaleError{Resource: "r", Token: 41, Highest: 54, Read: true},
		},
		"a reader, a malformed one": {"unnamed reader", 1, value(7, 0), "7", "", 2, etcdfence.ErrMalformedMark},

		"steady, moved to another lock":  {"Put", 1, value(41, 0) + accounts, value(41, 0) + report, "", 1, other(41, "accounts", "report")},
		"steady, older of another lock":  {"Put", 1, value(41, 0) + accounts, value(7, 0) + report, "", 1, other(41, "accounts", "report")},
		"steady, a longer name":          {"Put", 1, value(41, 0) + accounts, value(41, 0) + accounts + "2", "", 1, other(41, "accounts", "accounts2")},
		"steady, the name was lost":      {"Put", 1, value(41, 0) + accounts, value(41, 0), value(41, 0) + accounts, 2, nil},
		"absent, another lock":           {"Put", 2, "", value(7, 0) + report, "", 2, other(41, "accounts", "report")},
		"absent, a reader of another":    {"Put", 2, "", value(0, 7) + report, "", 2, other(41, "accounts", "report")},
		"absent, same lock, older":       {"Put", 2, "", value(7, 0) + accounts, value(41, 0) + accounts, 3, nil},
		"absent, same lock, same":        {"Put", 2, "", value(41, 0) + accounts, value(41, 0) + accounts, 3, nil},
		"absent, same without a name":    {"Put", 2, "", value(41, 0), value(41, 0) + accounts, 3, nil},
		"lower, another lock":            {"Put", 2, value(7, 0) + accounts, value(7, 0) + report, "", 2, other(41, "accounts", "report")},
		"without a name, another lock":   {"Put", 2, value(41, 0), value(41, 0) + report, "", 2, other(41, "accounts", "report")},
		"without a name, the same lock":  {"Put", 2, value(41, 0), value(41, 0) + accounts, value(41, 0) + accounts, 3, nil},
		"without a name, no name again":  {"Put", 2, value(41, 0), value(41, 0), value(41, 0) + accounts, 3, nil},
		"a claim, another lock":          {"Claim", 2, "", value(7, 0) + report, "", 2, other(41, "accounts", "report")},
		"unnamed, named by another":      {"unnamed", 2, value(7, 0), value(7, 0) + report, "", 2, other(41, "", "report")},
		"unnamed, moved before its look": {"lenient", 1, value(41, 0) + accounts, value(41, 0) + report, value(41, 0) + report, 2, nil},
		"unnamed, moved while it raises": {"lenient", 2, value(7, 0) + accounts, value(7, 0) + report, value(41, 0) + report, 3, nil},
		"unnamed, newer after its look": {
			"lenient", 2, value(41, 0) + accounts, value(54, 0) + accounts, "", 2, newer,
		},
		"unnamed, a reader after its look": {
			"lenient", 2, value(41, 0) + accounts, value(41, 54) + accounts, "", 2,
			&fence.StaleError{Resource: "r", Token: 41, Highest: 54, ByReader: true},
		},
		"a reader, another lock":          {"ClaimRead", 1, "", value(7, 0) + report, "", 2, reader},
		"a reader, moved":                 {"ClaimRead", 1, value(7, 0) + accounts, value(7, 0) + report, "", 2, reader},
		"a reader, named by another":      {"CheckRead", 1, value(41, 0), value(41, 0) + report, "", 2, reader},
		"a reader, named":                 {"CheckRead", 1, value(41, 0), value(41, 0) + accounts, value(41, 0) + accounts, 2, nil},
		"a move, a write of the old lock": {"Move", 2, value(7, 0) + report, value(20, 0) + report, value(41, 0) + accounts, 3, nil},
		"a move, a reader of the old":     {"Move", 2, value(7, 0) + report, value(7, 20) + report, value(41, 0) + accounts, 3, nil},
		"a move, a newer write of the old": {
			"Move", 2, value(7, 0) + report, value(54, 0) + report, "", 2, newer,
		},
		"a move, moved elsewhere": {"Move", 2, value(7, 0) + report, value(20, 0) + " ledger", value(41, 0) + accounts, 3, nil},
		"a move, done by another": {"Move", 2, value(7, 0) + report, value(41, 0) + accounts, value(41, 0) + accounts, 3, nil},
		"a move, undone":          {"Move", 1, value(41, 0) + accounts, value(41, 0) + report, value(41, 0) + accounts, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv, c := start(t)
				if tt.before != "" {
					srv.Put("fence/r", tt.before)
				}
				m, ctx := newMarks(t, c), of(t, "accounts", 41)
				switch tt.verb {
				case "lenient":
					m, ctx = lenient(t, c), with(t, 41)
				case "unnamed":
					ctx = with(t, 41)
				case "ClaimRead", "CheckRead":
					ctx = readerOf(t, "accounts", 41)
				case "unnamed reader":
					tt.verb, ctx = "ClaimRead", reading(t, 41)
				}
				kv, err := m.KV("r")
				require.NoError(t, err)
				verb := verbs(m)[tt.verb].Call
				if verb == nil {
					verb = func(ctx context.Context, _ string) error { return second(kv.Put(ctx, "d", "mine")) }
				}
				sent := len(c.Calls(fakeetcd.Any))
				hold, n := make(chan struct{}), 0
				c.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Match: func(fakeetcd.Call) bool { n++; return n == tt.at }})
				done := make(chan error)
				go func() { done <- verb(ctx, "r") }()
				synctest.Wait()
				require.Equal(t, tt.at, n)
				srv.Put("fence/r", tt.between)
				rev := srv.Rev()
				close(hold)
				err = <-done
				after := tt.after
				if errors.Is(err, etcdfence.ErrMalformedMark) {
					err = etcdfence.ErrMalformedMark
				}
				require.Equal(t, tt.refused, err)
				if tt.refused != nil {
					after = tt.between
					require.Empty(t, contents(srv, "d"))
				}
				require.Len(t, c.Calls(fakeetcd.Any), sent+tt.requests)
				require.Equal(t, after, contents(srv, "")["fence/r"])
				require.Equal(t, after != tt.between, srv.Keys("fence/r")[0].ModRevision > rev, "not written for nothing")
			})
		})
	}
}

// A late request is refused and lowers nothing: a write of a tenure that has claimed, a write that raises the mark, a
// claim to read, and a move.
func TestMarks_late(t *testing.T) {
	type call struct {
		verb, lock string
		token      fence.Token
	}
	do := func(ctx context.Context, m *etcdfence.Marks, c call) error {
		v := verbs(m)[c.verb]
		return v.Call(v.Context(ctx, c.token, c.lock), "r")
	}
	for _, tt := range []struct {
		before fence.Token // claimed for the lock accounts
		late   call
		at     int // the transaction of late that is delayed
		comes  call
		after  string
	}{
		{41, call{"Put", "accounts", 41}, 1, call{"Claim", "accounts", 54}, value(54, 0) + " accounts"},
		{41, call{"Put", "accounts", 41}, 1, call{"ClaimRead", "accounts", 54}, value(41, 54) + " accounts"},
		{7, call{"Put", "accounts", 41}, 2, call{"ClaimRead", "accounts", 54}, value(7, 54) + " accounts"},
		{41, call{"Put", "accounts", 41}, 1, call{"Move", "ledger", 41}, value(41, 0) + " ledger"},
		{7, call{"Put", "accounts", 41}, 2, call{"Move", "ledger", 41}, value(41, 0) + " ledger"},
		{7, call{"ClaimRead", "accounts", 50}, 1, call{"Claim", "accounts", 54}, value(54, 0) + " accounts"},
		{7, call{"Move", "ledger", 60}, 2, call{"Claim", "accounts", 54}, value(54, 0) + " accounts"},
	} {
		t.Run(fmt.Sprint(tt.late, tt.comes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv, c := start(t)
				paused, m := srv.NewClient(t.Context()), newMarks(t, c)
				require.NoError(t, m.Claim(of(t, "accounts", tt.before), "r"))
				hold, sent := make(chan struct{}), 0
				paused.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Late: true, Match: func(fakeetcd.Call) bool {
					sent++
					return sent == tt.at
				}})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.ErrorIs(t, do(ctx, newMarks(t, paused), tt.late), context.DeadlineExceeded)
				require.NoError(t, do(t.Context(), m, tt.comes))
				close(hold)
				synctest.Wait()
				require.NotZero(t, paused.Calls(fakeetcd.Txn)[tt.at-1].Acted)
				require.Equal(t, map[string]string{"fence/r": tt.after}, contents(srv, ""))
			})
		})
	}
}

// If the request or the answer of one of the transactions is lost, the verb returns the client's error and sends
// nothing again. Repeating the call is safe.
func TestMarks_lostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, transactions := range map[string]int{"Put": 2, "Claim": 2, "Move": 2, "ClaimRead": 1} {
			for _, lost := range []fakeetcd.Message{fakeetcd.Request, fakeetcd.Answer} {
				for at := 1; at <= transactions; at++ {
					srv, c := start(t)
					srv.Put("fence/r", value(7, 0)+" accounts")
					n := 0
					c.Inject(fakeetcd.Txn, fakeetcd.Fault{
						Lose: lost, Err: fakeetcd.ErrUnavailable, Match: func(fakeetcd.Call) bool { n++; return n == at },
					})
					verb, lock, after := verbs(newMarks(t, c))[name], "accounts", value(41, 0)+" accounts"
					switch name {
					case "Move":
						lock, after = "ledger", value(41, 0)+" ledger"
					case "ClaimRead":
						after = value(7, 41) + " accounts"
					}
					ctx := verb.Context(t.Context(), 41, lock)
					err := verb.Call(ctx, "r")
					require.Error(t, err)
					require.NotErrorIs(t, err, fence.ErrStale)
					require.NotErrorIs(t, err, fence.ErrOtherLock)
					require.Len(t, c.Calls(fakeetcd.Txn), at, "not sent again")
					done := lost == fakeetcd.Answer && at == transactions
					require.Equal(t, done, contents(srv, "")["fence/r"] == after, "%s %v %d", name, lost, at)
					require.Equal(t, done && name == "Put", len(contents(srv, "d")) == 1, "both or neither")
					require.NoError(t, verb.Call(ctx, "r"))
					require.Equal(t, after, contents(srv, "")["fence/r"])
				}
			}
		}
	})
}
