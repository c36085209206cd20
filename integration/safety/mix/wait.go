package mix

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

func millis(rng *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+rng.IntN(to-from)) * time.Millisecond
}

func sleep(ctx context.Context, d time.Duration) { pause(ctx.Done(), d) }

func pause(end <-chan struct{}, d time.Duration) {
	select {
	case <-time.After(d):
	case <-end:
	}
}

// closed reports whether a channel is closed to which nothing is ever sent.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// insist repeats call until it returns no error or ctx ends. An attempt at a member that is stopped must end soon, but
// on a slow machine a few requests may take longer than that: each attempt that runs out of time gives more to the
// next.
func insist(ctx context.Context, call func(context.Context) error) error {
	for bound := 2 * time.Second; ; {
		attempt, cancel := context.WithTimeout(ctx, bound)
		err := call(attempt)
		if attempt.Err() != nil {
			bound = min(2*bound, patience/4)
		}
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// await repeats ask until it returns true or the bound has passed. The caller uses what ask has found.
func await(ctx context.Context, bound time.Duration, ask func(context.Context) (bool, error)) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	_ = insist(ctx, func(ctx context.Context) error {
		yes, err := ask(ctx)
		if err == nil && !yes {
			err = errors.New("not yet")
		}
		return err
	})
}
