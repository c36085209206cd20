package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
)

// Scan yields the events of a history one by one, and stops at the first error. It skips an incomplete last line, which
// a killed process may leave.
func Scan(src io.Reader) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		dec := json.NewDecoder(src)
		dec.DisallowUnknownFields()
		for n := 1; ; n++ {
			var e Event
			err := dec.Decode(&e)
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return
			}
			if err != nil {
				yield(Event{}, fmt.Errorf("history: event %d: %w", n, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// ReadFile returns all events of the history in a file, none if there is an error.
func ReadFile(path string) (all []Event, err error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for e, err := range Scan(f) {
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}
