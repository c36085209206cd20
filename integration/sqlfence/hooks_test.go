package sqlfence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// Each verb calls a hook once, whatever the number of its attempts. TestMarks_rules tests the other verbs.
func TestMarks_hooks(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		told := make(fencetest.Told, 9)
		r.adapter = r.with(t, sqlfence.Options{Hooks: told.Hooks()})
		do := func(ctx context.Context, err error) error {
			return r.do(ctx, resource, false, func(context.Context, conn) error { return err })
		}
		claim := func(token fence.Token, path string) error { return r.claimPath(as(t, token), path) }
		checkPath := func() error {
			return r.transaction(t.Context(), func(tx conn) error { return r.checkPath(as(t, older), tx, "a/b") })
		}
		update := func(token fence.Token) error { return r.updateRow(as(t, token), r.conn, account, "n = n + 1") }
		elsewhere := &fence.StaleError{Resource: "elsewhere", Token: older}
		failed := errors.New("failed")
		ended, end := context.WithCancel(as(t, newer))
		end()
		of := func(resource string, token fence.Token) fence.Access {
			return fence.Access{Resource: resource, Token: token}
		}
		none, did, in := fence.Access{}, of(resource, older), of("a/b", older)
		for _, step := range []struct {
			name string
			want fence.Access // none if the hooks are not called
			is   error        // the verb's result
			verb func() error
		}{
			{"a Do, which claims first", did, nil, func() error { return do(as(t, older), nil) }},
			{"a function that fails", did, failed, func() error { return do(as(t, older), failed) }},
			{"a refusal elsewhere", did, elsewhere, func() error { return do(as(t, older), elsewhere) }},
			{"no token", none, fence.ErrInvalidToken, func() error { return do(t.Context(), nil) }},
			{"an ended context", none, context.Canceled, func() error { return do(ended, nil) }},
			{"a path", in, nil, func() error { return claim(older, "a/b") }},
			{"a path's check", in, nil, checkPath},
			{"a path above", of("a", newer), nil, func() error { return claim(newer, "a") }},
			{"a stale path", in, fence.ErrStale, func() error { return claim(older, "a/b") }},
			{"a stale path's check", in, fence.ErrStale, checkPath},
			{"a row", of(account.String(), newer), nil, func() error { return update(newer) }},
			{"a stale row", of(account.String(), older), fence.ErrStale, func() error { return update(older) }},
		} {
			err := step.verb()
			require.ErrorIs(t, err, step.is, step.name)
			got, failure := told.Last()
			if step.want == none {
				require.Error(t, failure, step.name)
				continue
			}
			require.NoError(t, failure, step.name)
			want := fencetest.Event{Access: step.want}
			if step.is == fence.ErrStale { //nolint:errorlint // of the marks, not elsewhere
				want.Err = err
			}
			require.Equal(t, want, got, step.name)
		}
	})
}
