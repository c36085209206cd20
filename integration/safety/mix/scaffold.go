package mix

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

// scaffold is the testing.TB that the tools of packages faults and etcdtest need, without a test. One goroutine at a
// time may use it.
type scaffold struct {
	testing.TB // nil: the tools use only the methods below

	cleanups []func()
	failure  error
}

func (*scaffold) Helper() {}

// Name returns the name that a failure shows.
func (*scaffold) Name() string { return "mix" }

// Context returns a context that never ends. That of a test ends before its cleanups, but no tool depends on that.
func (*scaffold) Context() context.Context { return context.Background() }

func (s *scaffold) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scaffold) Errorf(format string, args ...any) {
	s.failure = fmt.Errorf("mix: "+format, args...)
}

// FailNow ends the goroutine, as in a test.
func (*scaffold) FailNow() { runtime.Goexit() }

// try runs f in a goroutine that FailNow may end, and returns the failure.
func (s *scaffold) try(f func()) error {
	s.failure = nil
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	return s.failure
}

// clean runs the cleanups, the last one first. If a cleanup hangs, clean goes on without it and reports false.
func (s *scaffold) clean() (all bool) {
	const patient = 10 * time.Second
	all = true
	for _, clean := range slices.Backward(s.cleanups) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			clean()
		}()
		select {
		case <-done:
		case <-time.After(patient):
			all = false
		}
	}
	s.cleanups = nil
	return all
}
