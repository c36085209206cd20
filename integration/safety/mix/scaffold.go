package mix

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// scaffold stands in for the test that the tools of package faults ask for.
type scaffold struct {
	testing.TB // nil: what is used of it follows

	mu       sync.Mutex // guards the fields below
	cleanups []func()
	failure  error
}

func (*scaffold) Helper() {}

// Name is shown with a failure.
func (*scaffold) Name() string { return "mix" }

// Context of a test ends before its cleanups run; here nothing depends on that.
func (*scaffold) Context() context.Context { return context.Background() }

func (s *scaffold) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *scaffold) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = fmt.Errorf("mix: "+format, args...)
}

// FailNow ends the goroutine, as that of a test does.
func (*scaffold) FailNow() { runtime.Goexit() }

// try runs f, which is given the scaffold as its test, and returns why it failed.
func (s *scaffold) try(f func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.failure
	s.failure = nil
	return err
}

// clean runs the cleanups, the last one first. It reports false if one of them hangs, which is left behind.
func (s *scaffold) clean() bool {
	const patient = 10 * time.Second
	s.mu.Lock()
	cleanups := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	all := true
	for _, clean := range slices.Backward(cleanups) {
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
	return all
}
