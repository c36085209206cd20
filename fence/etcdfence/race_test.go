package etcdfence_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// A verb sees what changes the mark before its first or its second transaction: a newer or an older writer or reader,
// another lock, a move, a new name, or the loss of the name. The holder has token 41.
func TestMarks_interleaved(t *testing.T) {
	other := &fence.OtherLockError{Resource: "r", Token: 41, Lock: "accounts", Follows: "report"}
	otherReader := &fence.OtherLockError{Resource: "r", Token: 41, Read: true, Lock: "accounts", Follows: "report"}
	newer := &fence.StaleError{Resource: "r", Token: 41, Highest: 54}
	newerReader := &fence.StaleError{Resource: "r", Token: 41, Highest: 54, ByReader: true}
	for name, tt := range map[string]struct {
		verb            string
		lock            string // of the token; "" for none, "lax" for none where that is allowed
		at              int    // the transaction before which the mark changes
		before, between string // values of the mark; "" for none
		after           string // "" if the verb is refused
		requests        int
		refused         error
	}{
		"absent, newer between":    {"Put", "", 2, "", "54 0", "", 2, newer},
		"lower, older between":     {"Put", "", 2, "3 0", "7 0", "41 0", 3, nil},
		"lower, newer between":     {"Put", "", 2, "3 0", "54 0", "", 2, newer},
		"lower, the same value":    {"Put", "", 2, "3 0", "3 0", "41 0", 3, nil},
		"lower, malformed between": {"Put", "", 2, "3 0", "7", "", 2, etcdfence.ErrMalformedMark},

		"a reader, the first mark":  {"ClaimRead", "", 1, "", "7 0", "7 41", 3, nil},
		"a reader, an older reader": {"ClaimRead", "", 1, "7 0", "7 20", "7 41", 3, nil},
		"a reader, a newer reader":  {"ClaimRead", "", 1, "7 0", "7 54", "7 54", 2, nil},
		"a reader, a newer writer": {
			"ClaimRead", "", 1, "7 0", "54 0", "", 2, &fence.StaleError{Resource: "r", Token: 41, Highest: 54, Read: true},
		},

		"steady, a newer writer":        {"Put", "accounts", 1, "41 0 accounts", "54 0 accounts", "", 1, newer},
		"steady, a newer reader":        {"Put", "accounts", 1, "41 0 accounts", "41 54 accounts", "", 1, newerReader},
		"lower, a newer reader":         {"Put", "accounts", 2, "7 0 accounts", "7 54 accounts", "", 2, newerReader},
		"steady, moved to another lock": {"Put", "accounts", 1, "41 0 accounts", "41 0 report", "", 1, other},
		"steady, the name was lost":     {"Put", "accounts", 1, "41 0 accounts", "41 0", "41 0 accounts", 2, nil},
		"absent, another lock":          {"Put", "accounts", 2, "", "7 0 report", "", 2, other},
		"lower, another lock":           {"Put", "accounts", 2, "7 0 accounts", "7 0 report", "", 2, other},
		"without a name, the same lock": {"Put", "accounts", 2, "41 0", "41 0 accounts", "41 0 accounts", 3, nil},
		"unnamed, named by another": {
			"Put", "", 2, "7 0", "7 0 report", "", 2, &fence.OtherLockError{Resource: "r", Token: 41, Follows: "report"},
		},
		"unnamed, moved before its look":   {"Put", "lax", 1, "41 0 accounts", "41 0 report", "41 0 report", 2, nil},
		"unnamed, newer after its look":    {"Put", "lax", 2, "41 0 accounts", "54 0 accounts", "", 2, newer},
		"a reader, moved":                  {"ClaimRead", "accounts", 1, "7 0 accounts", "7 0 report", "", 2, otherReader},
		"a reader, named":                  {"CheckRead", "accounts", 1, "41 0", "41 0 accounts", "41 0 accounts", 2, nil},
		"a move, a write of the old lock":  {"Move", "accounts", 2, "7 0 report", "20 0 report", "41 0 accounts", 3, nil},
		"a move, a newer write of the old": {"Move", "accounts", 2, "7 0 report", "54 0 report", "", 2, newer},
		"a move, moved elsewhere":          {"Move", "accounts", 2, "7 0 report", "20 0 ledger", "41 0 accounts", 3, nil},
		"a move, undone":                   {"Move", "accounts", 1, "41 0 accounts", "41 0 report", "41 0 accounts", 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv, c := start(t)
				if tt.before != "" {
					srv.Put("fence/r", tt.before)
				}
				m, err := etcdfence.NewMarks(c, etcdfence.Options{AllowUnnamed: tt.lock == "lax"})
				require.NoError(t, err)
				verb := verbs(m)[tt.verb]
				ctx := verb.Holder(t.Context(), 41, strings.TrimPrefix(tt.lock, "lax"))
				sent := len(c.Calls(fakeetcd.Any))
				hold, n := make(chan struct{}), 0
				c.Inject(fakeetcd.Txn, fakeetcd.Fault{Until: hold, Match: func(fakeetcd.Call) bool { n++; return n == tt.at }})
				done := make(chan error)
				go func() { done <- verb.Call(ctx, "r") }()
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

// If the request or the answer of one of the transactions is lost, the verb returns the client's error and sends
// nothing again. Repeating the call is safe.
func TestMarks_lostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, transactions := range map[string]int{"Put": 2, "Claim": 2, "Move": 2, "ClaimRead": 1} {
			for _, lost := range []fakeetcd.Message{fakeetcd.Request, fakeetcd.Answer} {
				for at := 1; at <= transactions; at++ {
					srv, c := start(t)
					srv.Put("fence/r", "7 0 accounts")
					n := 0
					c.Inject(fakeetcd.Txn, fakeetcd.Fault{
						Lose: lost, Err: fakeetcd.ErrUnavailable, Match: func(fakeetcd.Call) bool { n++; return n == at },
					})
					verb, lock := verbs(newMarks(t, c))[name], "accounts"
					if verb.Moves {
						lock = "ledger"
					}
					after := admission.Marks{Write: 7, Lock: "accounts"}.
						After(admission.Bid{Token: 41, Read: verb.Reads, Lock: lock, Moves: verb.Moves}).String()
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
