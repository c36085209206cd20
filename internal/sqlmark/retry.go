package sqlmark

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	firstPause = 2 * time.Millisecond
	maxPause   = 100 * time.Millisecond
)

// retry runs op until it ends otherwise than by an error that is gone when it is repeated:
//
//	what op returns                                 what retry does
//	nil                                             returns it
//	deadlock, serialization failure, SQLite's lock  runs op again after a pause; the last error after the last attempt
//	Unknown, whatever it wraps                       returns it: the work may be done
//	anything else                                   returns it
//	context ended in a pause                        returns the last error with the context's cause
func (e *Engine[T]) retry(ctx context.Context, op func() error) error {
	for attempt := 1; ; attempt++ {
		err := op()
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
			return fmt.Errorf("%w: gave up after: %w", cause, err)
		}
	}
}

// pause waits a random time, so that those who met do not meet again. The bound doubles with each attempt.
func pause(ctx context.Context, attempt int) error {
	bound := maxPause
	if attempt < 7 {
		bound = min(firstPause<<attempt, maxPause)
	}
	timer := time.NewTimer(rand.N(bound))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
