package sqlfence_test

import (
	"context"
	"testing"

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
