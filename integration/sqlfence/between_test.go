package sqlfence_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
	"github.com/leasefence/leasefence/internal/fencetest"
)

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
						requireReaderRefused(t, x.increment(asReader(t, older), how, nowhere))
					} else {
						requireRefused(t, x.increment(as(t, older), how, nowhere), how, reads)
					}
				}
			}
		}
	})
}
