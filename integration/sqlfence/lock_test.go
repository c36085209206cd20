package sqlfence_test

import (
	"context"
	"testing"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// of returns the context of a lock's holder, and readerOf that of a reader.
func of(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(as(t, token), lock)
}

func readerOf(t *testing.T, lock string, token fence.Token) context.Context {
	t.Helper()
	return fence.WithLock(asReader(t, token), lock)
}

// holding returns the context of a holder who may call a verb, with the token of a lock unless that is "".
func holding(t *testing.T, v fencetest.Verb, token fence.Token, lock string) context.Context {
	t.Helper()
	ctx := v.Context(as(t, token), token)
	if lock == "" {
		return ctx
	}
	return fence.WithLock(ctx, lock)
}
