package sqlfence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// The check is not the first statement, and somebody writes between the read and the check, which notices it: a newer
// holder, or before the check of a reader or a path an older one, and only then the token is claimed.
func TestMarks_checkAfterARead(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, how := range []form{check, checkShared, checkRead, checkPath} {
			for _, token := range []fence.Token{older, newer} {
				if how == check || how == checkShared || token == newer && !r.readersLock() {
					t.Run(fmt.Sprintf("%s of %d", how, token), func(t *testing.T) { r.checkAfterARead(t, how, token) })
				}
			}
		}
	})
}

func (r *rig) checkAfterARead(t *testing.T, how form, token fence.Token) {
	t.Helper()
	r.reset(t)
	require.NoError(t, r.claim(as(t, older), resource))
	ctx := as(t, token)
	if how == checkRead {
		ctx = asReader(t, token)
	}
	between := func() {
		switch how {
		case checkRead, checkPath:
			require.NoError(t, r.increment(as(t, older), do, nowhere))
			if how == checkRead {
				require.NoError(t, r.claimRead(ctx, resource))
			} else {
				require.NoError(t, r.claimPath(ctx, resource))
			}
		default:
			require.NoError(t, r.claim(as(t, newer), resource))
			require.NoError(t, r.increment(as(t, newer), do, nowhere))
		}
	}
	err := r.transaction(ctx, func(tx conn) error {
		n, err := read(ctx, tx)
		require.NoError(t, err)
		if !r.readersLock() { // otherwise nobody can write in between
			between()
		}
		if err := r.guard[how](ctx, tx, resource); err != nil || how == checkRead {
			return err
		}
		return write(ctx, tx, n, token)
	})
	if r.readersLock() || token == newer && r.noSnapshot() {
		// The documented limit: these levels keep no snapshot that could be compared.
		require.NoError(t, err)
	} else {
		noticed := errors.Is(err, sqlfence.ErrUnclaimed) || errors.Is(err, fence.ErrStale) && token == older || transient(err)
		require.True(t, noticed, "%v", err)
	}
	require.Zero(t, r.row(t).stale)
}

// A new token was not claimed. At PostgreSQL's levels with a snapshot its transaction may read old data, so Check
// refuses it.
func TestCheck_unclaimed(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		require.NoError(t, r.claim(as(t, older), resource))
		err := r.increment(as(t, newer), check, nowhere)
		if !r.snapshots() {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, sqlfence.ErrUnclaimed)
		require.Zero(t, r.row(t).n)
	})
}

// There are two ways out after a token was accepted that was never granted: the next era, and lower marks by hand.
func TestMarks_absurdToken(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		all := r.with(t, sqlfence.Options{MaxEra: 32767})
		require.NoError(t, all.claim(as(t, 20<<48|1), resource))
		require.ErrorIs(t, r.claim(as(t, older), resource), fence.ErrStale)
		require.NoError(t, all.claim(as(t, 21<<48|1), resource), "in the next era")
		require.NoError(t, all.claim(as(t, math.MaxInt64), resource))
		require.NoError(t, all.claimRead(asReader(t, math.MaxInt64), resource))

		names := "'accounts'"
		if r.kind == storetest.PostgreSQL {
			names = `'accounts', E'\x01accounts'`
		}
		r.must(t, "UPDATE leasefence_marks SET token = 10, read_token = 10 WHERE resource IN ("+names+")")
		for _, how := range forms {
			require.NoError(t, r.increment(as(t, older), how, nowhere), "%s", how)
		}
		require.NoError(t, r.claimRead(asReader(t, older), resource))
		require.NoError(t, r.claim(as(t, newer), resource))
	})
}

// On SQLite a transaction that has read does not wait for the write lock, but fails if another has written since. So a
// claim takes the lock before it reads, also where there is a mark.
func TestMarks_Claim_locksBeforeItReads(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			r := newRig(t, place{kind: storetest.SQLite, journal: journal})
			require.NoError(t, r.claim(as(t, older), resource))
			statements, raised := 0, 0
			x := r.hooked(t, sqlfence.Options{}, func(request string) error {
				statements++
				switch {
				case request == "begin":
					statements = 0
				case strings.HasPrefix(request, "UPDATE") && statements > 1: // it is not the lock itself
					raised++
					r.mustBeShut(t)
				}
				return nil
			})
			require.NoError(t, x.claim(as(t, older+1), resource))
			require.NoError(t, x.claimRead(asReader(t, older+2), resource))
			require.NoError(t, x.claimPath(as(t, older+3), resource))
			require.NoError(t, x.do(as(t, older+4), resource, nothing))
			require.Equal(t, 4, raised)
		})
	}
}

// On the same servers and with the same rig, naive checks let a stale write be committed. So the fault that the other
// tests look for does happen without the guard.

const mark = "SELECT token FROM " + sqlfence.DefaultTable + " WHERE resource = 'accounts'"

// Reads the mark, then writes, in one transaction. The write does not notice a claim in between. On SQLite, and on
// MariaDB where a plain read locks, it does: there the read and the write are not in one transaction.
func TestControl_selectThenUpdate(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.NoError(t, r.claim(as(t, older), resource))
		naive := func(q conn) error {
			var seen int64
			require.NoError(t, q.scan(as(t, older), mark, &seen))
			require.LessOrEqual(t, seen, int64(older), "the naive check passes")
			require.NoError(t, r.claim(as(t, newer), resource))
			require.Zero(t, r.row(t).n, "what the newer holder reads after its claim")
			return write(as(t, older), q, 0, older)
		}
		if r.readersLock() || r.kind == storetest.SQLite {
			require.NoError(t, naive(r))
		} else {
			require.NoError(t, r.transaction(as(t, older), naive))
		}
		require.EqualValues(t, 1, r.row(t).n, "a stale write after the claim had returned")
	})
}

// Compares the mark by EXISTS in the UPDATE itself. At read committed PostgreSQL then reads the newest version of the
// row that it had to wait for, and an old version of the mark. Elsewhere the statement fails or sees the new mark.
func TestControl_existsInTheUpdate(t *testing.T) {
	r := newRig(t, readCommitted)
	require.NoError(t, r.claim(as(t, older), resource))
	naive := make(chan error, 1)
	require.NoError(t, r.increment(as(t, newer), check, func(at step) {
		if at != hasWritten {
			return
		}
		go func() {
			naive <- r.exec(as(t, older), "UPDATE data SET stale = stale + 1 WHERE id = 1 AND EXISTS ("+
				"SELECT 1 FROM "+sqlfence.DefaultTable+" WHERE resource = 'accounts' AND token <= 10)")
		}()
		r.awaitWaiter(t)
	}))
	require.NoError(t, <-naive)
	require.EqualValues(t, 1, r.row(t).stale, "a stale write after the newer one was committed")
}

// overtaken claims on a pool of its own, and calls then between the claim's look at the marks and its raise.
func overtaken(t *testing.T, r *rig, log string, claim func(*adapter) error, then func()) error {
	t.Helper()
	begins := 0
	return claim(r.hooked(t, sqlfence.Options{Log: log}, func(request string) error {
		if request == "begin" {
			if begins++; begins == 2 {
				then()
			}
		}
		return nil
	}).adapter)
}

// Between a claim's look at the marks and its raise, another claim comes and refuses it: a writer's or a reader's with
// a newer token, or one of another lock where the resource followed none. The refused claim raises nothing and has no
// tenure.
func TestMarks_claimsOvertaken(t *testing.T) {
	type call struct {
		verb, lock string
		token      fence.Token
	}
	at(t, each, func(t *testing.T, r *rig) {
		for _, row := range []struct{ claim, comes call }{
			{call{"Claim", "", older}, call{"Claim", "", newer}},
			{call{"Claim", "", older}, call{"ClaimRead", "", newer}},
			{call{"ClaimRead", "", older}, call{"Claim", "", newer}},
			{call{"Claim", "report", newer}, call{"Claim", "accounts", older}},
			{call{"ClaimRead", "report", newer}, call{"Claim", "accounts", older}},
		} {
			for _, log := range []string{"", sqlfence.DefaultLog} {
				require.NoError(t, r.with(t, sqlfence.Options{Log: log}).migrate(t.Context()))
				for _, first := range []fence.Token{0, 5} { // without a mark, and with one
					r.reset(t)
					v, comer := verbs(r)[row.claim.verb], verbs(r)[row.comes.verb]
					if first != 0 {
						require.NoError(t, v.Call(holding(t, v, first, ""), resource))
					}
					before := r.marks(t, resource)
					after, refused := before.After(comer, row.comes.token, row.comes.lock, false)
					require.NoError(t, refused)
					_, want := after.After(v, row.claim.token, row.claim.lock, false)
					err := overtaken(t, r, log, func(f *adapter) error {
						if v.Reads {
							return f.claimRead(holding(t, v, row.claim.token, row.claim.lock), resource)
						}
						return f.claim(holding(t, v, row.claim.token, row.claim.lock), resource)
					}, func() {
						require.NoError(t, comer.Call(holding(t, comer, row.comes.token, row.comes.lock), resource), "the other claim is announced")
					})
					fencetest.RequireRefusal(t, want, err, resource, fmt.Sprint(row, first))
					require.Equal(t, after, r.marks(t, resource).Normal(), "the claim that was refused has raised its mark")
					if log != "" {
						audited(t, r)
						tenures, refusals := history(t, r, sqlfence.Query{})
						require.Empty(t, tenures, "the claim that was refused has a tenure")
						_, stale := want.(*fence.StaleError) //nolint:errorlint // the rule's own
						require.Equal(t, stale && !v.Reads, len(refusals) == 1)
						r.must(t, "DELETE FROM fencing_token_log_refused")
						r.adapter = r.with(t, sqlfence.Options{Attempts: 50})
					}
					if row.comes.lock == "" {
						continue
					}
					// The announcement of the refused claim refuses nobody.
					for _, how := range forms {
						require.NoError(t, r.increment(of(t, "accounts", older), how, nowhere))
					}
					require.NoError(t, r.checked(readerOf(t, "accounts", older), nowhere, func(conn) error { return nil }))
					require.NoError(t, r.claim(of(t, "accounts", older+1), resource))
					require.NoError(t, r.claimRead(readerOf(t, "accounts", older+2), resource))
				}
			}
		}
	})
}

// A newer writer or reader comes between two statements of the first check of a resource. There is no mark yet, so the
// check has no lock until it inserts one.
func TestMarks_checksOvertaken(t *testing.T) {
	at(t, []place{readCommitted, pgxPlace, {kind: storetest.MariaDB, level: sql.LevelReadCommitted}}, func(t *testing.T, r *rig) {
		for _, how := range []form{check, checkShared, checkRead} {
			for _, reads := range []bool{false, true} {
				if how == checkRead && reads {
					continue // readers do not refuse each other
				}
				inserts := false
				for n := 2; !inserts; n++ { // after the begin
					r.reset(t)
					requests := 0
					x := r.hooked(t, sqlfence.Options{}, func(request string) error {
						if requests++; requests == n {
							inserts = strings.HasPrefix(request, "INSERT")
							_, err := r.arrive(t, newer, arrival{how: map[bool]form{false: do, true: checkRead}[reads], claims: true})
							require.NoError(t, err)
						}
						return nil
					})
					if how == checkRead {
						requireOutcome(t, staleReader(), x.increment(asReader(t, older), how, nowhere), how)
					} else {
						requireOutcome(t, stale(reads), x.increment(as(t, older), how, nowhere), how)
					}
				}
			}
		}
	})
}
