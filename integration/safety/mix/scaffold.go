package mix

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// scaffold is the testing.TB of a run, which is no test. It is safe for concurrent use.
type scaffold struct {
	testing.TB // nil: the run and the tools that it uses call only the methods below

	dir string // of temporary folders

	mu       sync.Mutex // guards the fields below
	cleanups []func()
	failure  error // the first
}

func (*scaffold) Helper() {}

// Name returns the name that a failure shows.
func (*scaffold) Name() string { return "mix" }

// Context returns a context that never ends. That of a test ends before its cleanups, but no tool depends on that.
func (*scaffold) Context() context.Context { return context.Background() }

// TempDir returns a new folder, which is not removed.
func (s *scaffold) TempDir() string {
	err := os.MkdirAll(s.dir, 0o750)
	dir := ""
	if err == nil {
		dir, err = os.MkdirTemp(s.dir, "")
	}
	if err != nil {
		s.Errorf("%v", err)
		s.FailNow()
	}
	return dir
}

func (s *scaffold) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *scaffold) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		s.failure = fmt.Errorf("mix: "+format, args...)
	}
}

// FailNow ends the goroutine, as in a test.
func (*scaffold) FailNow() { runtime.Goexit() }

// run runs f in a goroutine that FailNow may end, and then the cleanups, the last one first. If a cleanup hangs, run
// goes on without it and reports that. It returns the failure.
func (s *scaffold) run(f func()) (hung bool, err error) {
	const patient = 10 * time.Second
	<-begin(f)
	for _, clean := range slices.Backward(s.cleanups) {
		select {
		case <-begin(clean):
		case <-time.After(patient):
			hung = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return hung, s.failure
}

// begin starts a goroutine, and returns a channel that is closed when it has ended.
func begin(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}
