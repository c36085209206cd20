package sqlmark

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	firstPause = 2 * time.Millisecond
	maxPause   = 100 * time.Millisecond
)

// retry runs op again after errors that a new attempt can avoid:
//
//	result of op                                    action of retry
//	nil                                             returns it
//	overtakenError                                  runs op again at once, until the context ends; not counted
//	deadlock, serialization failure, SQLite's lock  runs op again after a pause; the last error after the last attempt
//	ErrUnknown, with any wrapped error              returns it: the work may be done
//	anything else                                   returns it
//	context ended in a pause                        returns the last error with the context's cause
func (e *Engine[D, T]) retry(ctx context.Context, op func() error) error {
	for attempt := 1; ; {
		err := op()
		if behind, found := errors.AsType[overtakenError](err); found {
			if ctx.Err() != nil {
				// Without this type: if a function of Do returns the error, that Do must not begin again for it.
				return fmt.Errorf("%w, after: %w", context.Cause(ctx), behind.error)
			}
			// Another transaction has committed and op has done nothing, so the system makes progress, and counting
			// would only let others exhaust the attempts. A pause would let later transactions lock the mark first.
			continue
		}
		if err == nil || !e.repeatable(err) {
			return err
		}
		if attempt == e.attempts {
			if attempt == 1 {
				return err
			}
			return fmt.Errorf("%w (attempt %d of %d)", err, attempt, e.attempts)
		}
		if cause := pause(ctx, attempt); cause != nil {
			return fmt.Errorf("%w, after: %w", cause, err)
		}
		attempt++
	}
}

// pause waits a random time, so that transactions do not conflict again. The bound doubles with each attempt.
func pause(ctx context.Context, attempt int) error {
	timer := time.NewTimer(rand.N(min(firstPause<<min(attempt, 6), maxPause)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
