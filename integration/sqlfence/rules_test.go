package sqlfence_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// verbs returns the verbs that know the lock of their token. A check that returns ErrUnclaimed claims and begins again.
func verbs(r *rig) map[string]fencetest.Verb {
	all := fencetest.VerbsOf(r.claim, nil, r.move, r.claimRead, nil)
	for _, how := range append([]form{checkRead}, forms...) {
		claim := r.claim
		if how == checkRead {
			claim = r.claimRead
		}
		all[string(how)] = fencetest.Verb{Reads: how == checkRead, Call: func(ctx context.Context, resource string) error {
			return persist(ctx, resource, claim, func() error { return r.runOn(ctx, resource, how, nowhere, nothing) })
		}}
	}
	return all
}

// marks returns the marks of a resource.
func (r *rig) marks(t *testing.T, resource string) (m fencetest.Marks) {
	t.Helper()
	var write, read int64
	rows := "SELECT COALESCE(MAX(token), 0), COALESCE(MAX(read_token), 0), COALESCE(MAX(lock_name), '') FROM leasefence_marks "
	require.NoError(t, r.scan(t.Context(), rows+"WHERE resource = '"+resource+"'", &write, &read, &m.Lock))
	m.Write, m.Read = fence.Token(write), fence.Token(read)
	return m
}

// The rule is the same Go code everywhere; here each dialect and each library shows that it stores and reads the marks.
func TestMarks_rules(t *testing.T) {
	at(t, append(each, pgxPlace), func(t *testing.T, r *rig) {
		told, lax := make(fencetest.Told, 9), &rig{place: r.place, db: r.db, pool: r.pool}
		r.adapter = r.with(t, sqlfence.Options{Hooks: told.Hooks()})
		lax.adapter = r.with(t, sqlfence.Options{Hooks: told.Hooks(), AllowUnnamed: true})
		rules := fencetest.Rules{Verbs: verbs(r), Lax: verbs(lax), Told: told, Marks: r.marks}
		rules.Decide(t)
		rules.Names(t, 255)
	})
}

func TestMarks_grants(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		fencetest.Grants(t, verbs(r), string(do), string(doShared), string(check), string(checkShared))
	})
}
