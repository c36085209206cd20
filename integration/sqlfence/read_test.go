package sqlfence_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// asReader returns a context that carries a reader's token.
func asReader(t *testing.T, token fence.Token) context.Context {
	t.Helper()
	return fence.NewReadContext(as(t, token), fence.ReadToken(token))
}

// checked runs body in a transaction under CheckRead.
func (r *rig) checked(ctx context.Context, at func(step), body func(tx conn) error) error {
	return r.runOn(ctx, resource, checkRead, at, func(_ context.Context, tx conn) error { return body(tx) })
}

// A newer writer comes at every step of a reader's transaction, which reads the same data until it ends.
func TestMarks_writerComesAtEveryStepOfAReader(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, claims := range []bool{true, false} {
			for _, comes := range arrivals {
				if comes.moves || comes.how == checkRead {
					continue
				}
				for _, when := range []step{beforeBegin, begun, guarded, hasRead, committed} {
					name := fmt.Sprintf("reader claims %t, newer by %+v %s", claims, comes, when)
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
	m := waits
	if r.journal == "wal" && claims {
		m = mustPass // the transaction keeps its snapshot
	}
	ctx := asReader(t, older)
	err, arrived := r.meets(t, func(at func(step)) error {
		return r.checked(ctx, at, func(tx conn) error {
			for range 2 {
				n, err := read(ctx, tx)
				if err != nil {
					return err
				}
				require.Zero(t, n)
				at(hasRead)
			}
			return nil
		})
	}, when, m, func() error {
		_, err := r.arrive(t, newer, comes)
		return err
	})
	require.NoError(t, arrived, "the writer")
	if when.before() {
		requireReaderRefused(t, err)
	} else {
		require.NoError(t, err, "the reader was first")
	}
	require.Equal(t, row{n: 1, last: int64(newer)}, r.row(t))
	requireReaderRefused(t, r.claimRead(asReader(t, older), resource))
	_, err = r.arrive(t, older, arrival{how: checkRead})
	requireReaderRefused(t, err)
	n, err := r.arrive(t, newer+1, arrival{how: checkRead, claims: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}
