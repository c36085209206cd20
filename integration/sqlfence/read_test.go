package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// asReader returns a context that carries a reader's token.
func asReader(t *testing.T, token fence.Token) context.Context {
	t.Helper()
	return fence.NewReadContext(as(t, token), fence.ReadToken(token))
}

// checked runs body in a transaction under CheckRead.
func (r *rig) checked(ctx context.Context, at func(step), body func(tx conn) error) error {
	return r.run(ctx, checkRead, at, func(_ context.Context, tx conn) error { return body(tx) })
}

// arriveReader is a newer reader's first read, with the steps that the documents require.
func (r *rig) arriveReader(ctx context.Context, claims bool) (n int64, err error) {
	if claims {
		if err := r.claimRead(ctx, resource); err != nil {
			return 0, err
		}
	}
	err = persist(ctx, resource, r.claimRead, func() error {
		return r.checked(ctx, nowhere, func(tx conn) (err error) {
			n, err = read(ctx, tx)
			return err
		})
	})
	return n, err
}

// A newer reader comes at every step of an older writer's transaction: it waits for the transaction, reads what it has
// written, and later ones are refused.
func TestMarks_readerComesAtEveryStep(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		everyStep(func(how form, when step) {
			for _, claims := range []bool{true, false} {
				for _, first := range []bool{true, false} {
					name := fmt.Sprintf("%s, first mark %t, reader claims %t, %s", how, first, claims, when)
					t.Run(name, func(t *testing.T) { r.readerComes(t, how, claims, first, when) })
				}
			}
		})
	})
}

func (r *rig) readerComes(t *testing.T, how form, claims, first bool, when step) {
	t.Helper()
	r.reset(t)
	if !first || r.snapshots() && how.checks() {
		require.NoError(t, r.claim(as(t, older), resource))
	}
	var n int64
	arrive := func() (err error) {
		n, err = r.arriveReader(asReader(t, newer), claims)
		return err
	}
	err, arrived := r.meets(t, r.incrementOf(as(t, older), how), when, waits, arrive)
	require.NoError(t, arrived, "the reader")
	accepted := int64(0)
	if !when.before() {
		require.NoError(t, err, "the older holder was first")
		accepted = 1
	} else {
		requireFenced(t, err, how)
	}
	require.Equal(t, accepted, n, "what the reader has read")
	requireFenced(t, r.increment(as(t, older), how, nowhere), how)
	require.Equal(t, accepted, r.row(t).n)
}

// A newer writer comes at every step of a reader's transaction, which reads the same data until it ends.
func TestMarks_writerComesAtEveryStepOfAReader(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, claims := range []bool{true, false} {
			for _, comes := range []arrival{byClaim, byDo, byCheck} {
				for _, when := range []step{beforeBegin, begun, guarded, hasRead, committed} {
					name := fmt.Sprintf("reader claims %t, newer by %s %s", claims, comes, when)
					t.Run(name, func(t *testing.T) { r.writerComes(t, claims, comes, when) })
				}
			}
		}
	})
}

func (r *rig) writerComes(t *testing.T, claims bool, comes arrival, when step) {
	t.Helper()
	r.reset(t)
	if claims || r.snapshots() {
		require.NoError(t, r.claimRead(asReader(t, older), resource))
	}
	arrived := make(chan error, 1)
	arrive := func(at step) {
		if at != when {
			return
		}
		come := func() { arrived <- r.arrive(as(t, newer), comes) }
		switch {
		case at != guarded && at != hasRead:
			come()
		case r.kind != storetest.SQLite:
			go come()
			r.awaitWaiter(t)
		case r.journal == "wal" && claims:
			come() // the transaction keeps its snapshot, and the writer does not wait
		default:
			r.mustBeShut(t)
			go come()
		}
	}
	ctx := asReader(t, older)
	err := r.checked(ctx, arrive, func(tx conn) error {
		for _, at := range []step{hasRead, hasWritten} {
			n, err := read(ctx, tx)
			if err != nil {
				return err
			}
			require.Zero(t, n)
			arrive(at)
		}
		return nil
	})
	require.NoError(t, <-arrived, "the writer")
	if when == beforeBegin || when == begun {
		requireReaderRefused(t, err)
	} else {
		require.NoError(t, err, "the reader was first")
	}
	require.Equal(t, row{n: 1, last: int64(newer)}, r.row(t))
	requireReaderRefused(t, r.claimRead(asReader(t, older), resource))
	_, err = r.arriveReader(asReader(t, older), false)
	requireReaderRefused(t, err)
	n, err := r.arriveReader(asReader(t, newer+1), true)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

// Readers do not wait for each other once the read mark is as high as their tokens. A writer's claim waits for all of
// them, and keeps later ones out.
func TestMarks_readersRunSideBySide(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		require.NoError(t, r.claimRead(asReader(t, older+1), resource))
		require.NoError(t, r.claimRead(asReader(t, older), resource), "an older reader")
		results, release := twoInside(t, func(i int, body func() error) error {
			return r.checked(asReader(t, older+fence.Token(i)), nowhere, func(conn) error { return body() })
		})
		require.NoError(t, r.claimRead(asReader(t, older+1), resource), "a claim that raises nothing does not wait")
		if r.kind != storetest.MariaDB && r.journal != "delete" {
			require.NoError(t, r.claimRead(asReader(t, older+2), resource), "nor one of a newer reader")
		}
		claimed := make(chan error, 1)
		go func() { claimed <- r.claim(as(t, newer), resource) }()
		if r.journal == "wal" {
			require.NoError(t, <-claimed, "they have their snapshots")
			claimed <- nil
		}
		if r.kind != storetest.SQLite {
			r.awaitWaiter(t)
		}
		third := make(chan error, 1)
		go func() { third <- r.checked(asReader(t, older), nowhere, func(conn) error { return nil }) }()
		if r.kind == storetest.PostgreSQL {
			requireReaderRefused(t, <-third) // otherwise readers that overlap would keep the claim waiting
			third <- fence.ErrStale
		}
		close(release[0])
		require.NoError(t, <-results)
		if r.kind != storetest.SQLite {
			r.awaitWaiter(t)
			require.Empty(t, claimed, "the claim has not waited for the second")
		}
		close(release[1])
		require.NoError(t, <-results)
		require.NoError(t, <-claimed)
		if err := <-third; r.journal != "delete" { // there it may have come before the claim
			require.True(t, errors.Is(err, fence.ErrStale) || transient(err), "%v", err)
		}
	})
}

// The audit trail has no tenures and refusals of readers. It has the refusal of a writer by a reader's mark.
func TestMarks_History_readers(t *testing.T) {
	at(t, append(each, pgxPlace), func(t *testing.T, r *rig) {
		audited(t, r)
		require.NoError(t, r.claim(as(t, older), resource))
		require.NoError(t, r.claimRead(asReader(t, newer), resource))
		require.ErrorIs(t, r.claim(as(t, older), resource), fence.ErrStale)
		require.ErrorIs(t, r.do(as(t, older), resource, false, nothing), fence.ErrStale)
		require.NoError(t, r.claim(as(t, newer+1), resource))
		refused := r.claimRead(asReader(t, newer), resource)
		require.ErrorIs(t, refused, fence.ErrStale)
		require.NoError(t, r.logRefusal(asReader(t, newer), refused))
		require.Equal(t, []string{
			"accounts 10  0s superseded", "accounts 21  0s ",
			"accounts 10 < 20 ", "accounts 10 < 20 ",
		}, brief(history(t, r, sqlfence.Query{})))
	})
}
