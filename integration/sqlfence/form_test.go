package sqlfence_test

import (
	"context"

	"github.com/leasefence/leasefence/fence"
)

// step is a place in a transaction where another holder may come.
type step string

const (
	beforeBegin step = "before the transaction"
	begun       step = "after begin"
	guarded     step = "after the guard"
	hasRead     step = "after the read"
	hasWritten  step = "after the write"
	committed   step = "after the commit"
)

// form is a way to write.
type form string

const (
	do          form = "Do"
	doShared    form = "DoShared"
	check       form = "Check"
	checkShared form = "CheckShared"

	// These are not among forms: one is for readers, the other needs a claim of the path.
	checkRead form = "CheckRead"
	checkPath form = "CheckPath"
)

var forms = []form{do, doShared, check, checkShared}

// checks reports whether the transaction is the caller's own.
func (f form) checks() bool { return f != do && f != doShared }

func (f form) shared() bool { return f == doShared || f == checkShared }

// increment is one read-modify-write in a form, or under CheckRead two reads of the same.
func (r *rig) increment(ctx context.Context, how form, at func(step)) error {
	_, err := r.incrementOn(ctx, resource, how, at)
	return err
}

// incrementOn also returns what it has read.
func (r *rig) incrementOn(ctx context.Context, resource string, how form, at func(step)) (n int64, err error) {
	token, _ := fence.FromContext(ctx)
	err = r.runOn(ctx, resource, how, at, func(ctx context.Context, tx conn) (err error) {
		if n, err = read(ctx, tx); err != nil {
			return err
		}
		at(hasRead)
		if how == checkRead {
			again, err := read(ctx, tx)
			if err == nil && again != n {
				err = errChanged
			}
			return err
		}
		if err := write(ctx, tx, n, token); err != nil {
			return err
		}
		at(hasWritten)
		return nil
	})
	return n, err
}

// runOn runs body in a transaction that the form guards. It calls at at each step that the form has, again if it is
// repeated.
func (r *rig) runOn(ctx context.Context, resource string, how form, at func(step),
	body func(context.Context, conn) error,
) (err error) {
	inside := func(ctx context.Context, tx conn) error {
		at(guarded)
		return body(ctx, tx)
	}
	at(beforeBegin)
	if how.checks() {
		err = r.transaction(ctx, func(tx conn) error {
			at(begun)
			if err := r.guard(ctx, tx, resource, how); err != nil {
				return err
			}
			return inside(ctx, tx)
		})
	} else {
		err = r.do(ctx, resource, how.shared(), inside)
	}
	at(committed)
	return err
}

// checked runs body in a transaction under CheckRead.
func (r *rig) checked(ctx context.Context, at func(step), body func(tx conn) error) error {
	return r.runOn(ctx, resource, checkRead, at, func(_ context.Context, tx conn) error { return body(tx) })
}

func (r *rig) guard(ctx context.Context, tx conn, resource string, how form) error {
	switch how {
	case checkRead:
		return r.checkRead(ctx, tx, resource)
	case checkPath:
		return r.checkPath(ctx, tx, resource)
	default:
		return r.check(ctx, tx, resource, how.shared())
	}
}

func nowhere(step) {}

func nothing(context.Context, conn) error { return nil }
