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

// Each verb calls a hook once, whatever the number of its attempts.
func TestMarks_hooks(t *testing.T) {
	at(t, inTurn, func(t *testing.T, r *rig) {
		told := &fencetest.Told{}
		a := r.with(t, sqlfence.Options{Hooks: told.Hooks()})
		by := func(token fence.Token, lock string) context.Context {
			return fence.WithLock(fence.NewContext(t.Context(), token), lock)
		}
		reader := fence.WithLock(fence.NewReadContext(t.Context(), 60), "/orders")
		row := sqlfence.Row{Table: "data", Key: "id", ID: 1}
		r.reset(t)

		checked := func(check func(tx conn) error) error { return a.transaction(t.Context(), check) }
		do := func(ctx context.Context, err error) error {
			return a.do(ctx, "orders", false, func(context.Context, conn) error { return err })
		}
		elsewhere := &fence.StaleError{Resource: "elsewhere", Token: 54}
		failed := errors.New("failed")
		ended, end := context.WithCancel(by(80, "/orders"))
		end()
		of := func(resource string, token fence.Token) fence.Access {
			return fence.Access{Resource: resource, Token: token, Lock: "/orders"}
		}
		read := of("orders", 60)
		read.Read = true
		accounts := of("orders", 90)
		accounts.Lock = "/accounts"
		ofRow := func(token fence.Token) fence.Access { return fence.Access{Resource: row.String(), Token: token} }
		for _, step := range []struct {
			name string
			want *fence.Access // nil: the hooks are not called
			is   error         // the verb's result, which the hook gets if it is a refusal by the marks
			verb func() error
		}{
			{"a claim", new(of("orders", 41)), nil, func() error { return a.claim(by(41, "/orders"), "orders") }},
			{"a newer Do, which claims first", new(of("orders", 54)), nil, func() error { return do(by(54, "/orders"), nil) }},
			{"a function that fails", new(of("orders", 54)), failed, func() error { return do(by(54, "/orders"), failed) }},
			{
				"a refusal elsewhere", new(of("orders", 54)), elsewhere,
				func() error { return do(by(54, "/orders"), elsewhere) },
			},
			{"a stale Do", new(of("orders", 41)), fence.ErrStale, func() error { return do(by(41, "/orders"), nil) }},
			{"a stale claim", new(of("orders", 41)), fence.ErrStale, func() error { return a.claim(by(41, "/orders"), "orders") }},
			{"another lock", new(accounts), fence.ErrOtherLock, func() error { return a.claim(by(90, "/accounts"), "orders") }},
			{"a reader's claim", &read, nil, func() error { return a.claimRead(reader, "orders") }},
			{
				"a reader's check", &read, nil,
				func() error { return checked(func(tx conn) error { return a.checkRead(reader, tx, "orders") }) },
			},
			{"a check", new(of("orders", 54)), fence.ErrStale, func() error {
				return checked(func(tx conn) error { return a.check(by(54, "/orders"), tx, "orders", false) })
			}},
			{"no token", nil, fence.ErrInvalidToken, func() error { return a.claim(t.Context(), "orders") }},
			{"an ended context", nil, context.Canceled, func() error { return do(ended, nil) }},
			{"a path", new(of("a/b/c", 70)), nil, func() error { return a.claimPath(by(70, "/orders"), "a/b/c") }},
			{"a path's check", new(of("a/b/c", 70)), nil, func() error {
				return checked(func(tx conn) error { return a.checkPath(by(70, "/orders"), tx, "a/b/c") })
			}},
			{"a stale path", new(of("a/b", 41)), fence.ErrStale, func() error { return a.claimPath(by(41, "/orders"), "a/b") }},
			{"a row", new(ofRow(54)), nil, func() error { return a.updateRow(by(54, "/orders"), nil, row, "n = n + 1") }},
			{
				"a stale row", new(ofRow(41)), fence.ErrStale,
				func() error { return a.updateRow(by(41, "/orders"), nil, row, "n = n + 1") },
			},
		} {
			err := step.verb()
			require.ErrorIs(t, err, step.is, step.name)
			got, failure := told.Last()
			if step.want == nil {
				require.Error(t, failure, step.name)
				continue
			}
			require.NoError(t, failure, step.name)
			require.Equal(t, *step.want, got.Access, step.name)
			if !errors.Is(step.is, fence.ErrStale) && !errors.Is(step.is, fence.ErrOtherLock) || errors.Is(step.is, elsewhere) {
				err = nil
			}
			require.Equal(t, err, got.Err, step.name)
		}
	})
}
