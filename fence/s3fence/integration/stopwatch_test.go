package integration_test

import "time"

// stopwatch adds up what calls take.
type stopwatch struct{ total time.Duration }

func (s *stopwatch) time(f func() error) error {
	began := time.Now()
	err := f()
	s.total += time.Since(began)
	return err
}
