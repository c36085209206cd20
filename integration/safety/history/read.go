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

// Scan yields the events of a history one by one. After an error it ends. What a killed process leaves ends in the middle of a
// line, which is left out.
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

// ReadAll returns a whole history.
func ReadAll(src io.Reader) ([]Event, error) {
	var all []Event
	for e, err := range Scan(src) {
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// ReadFile returns the history in a file.
func ReadFile(path string) (all []Event, err error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return ReadAll(f)
}
