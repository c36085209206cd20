package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/leasefence/leasefence/fence"
)

const (
	mostTrail = 64 << 20 // bytes of a file that are read, or of a pipe
	mostShown = 200      // rows of each table that are shown for one name
)

// trail is a file with rows of an audit trail, from the two tables of sqlfence or pgxfence: JSON objects, or arrays of
// them.
type trail struct {
	file string
	last atomic.Pointer[trailRead]
}

// trailRead is what was read of a file.
type trailRead struct {
	stat os.FileInfo // before the reading; nil if the file was not there
	rows []trailEntry
	err  error
}

// trailRow is a row of either table.
type trailRow struct {
	Resource  string      `json:"key"`
	Token     json.Number `json:"token"`
	Highest   json.Number `json:"highest"` // refusals only
	Holder    string      `json:"holder"`
	GrantedAt string      `json:"granted_at"`    // tenures only
	Released  string      `json:"released_at"`   // tenures only
	Cause     string      `json:"release_cause"` // tenures only
	RefusedAt string      `json:"refused_at"`    // refusals only
}

// trailEntry is a row as the page gets it.
type trailEntry struct {
	Resource string `json:"resource"`
	Token    string `json:"token"`             // in era 0, as the tokens of holds
	Highest  string `json:"highest,omitempty"` // of a refusal; a tenure has none
	Holder   string `json:"holder"`
	Begin    int64  `json:"begin"` // of a refusal its time
	End      int64  `json:"end,omitempty"`
	Cause    string `json:"cause,omitempty"`

	rev int64
}

// trailView has the rows of a trail about one name, the newest first.
type trailView struct {
	Rows  []trailEntry `json:"rows"`
	Error string       `json:"error,omitempty"`
}

// newTrail reads a file. The trail is nil if no file is given.
func newTrail(file string) (*trail, error) {
	if file == "" {
		return nil, nil
	}
	l := &trail{file: file}
	l.last.Store(&trailRead{})
	l.refresh()
	if err := l.last.Load().err; err != nil {
		return nil, usageError("--audit: %w", err)
	}
	return l, nil
}

// follow reads the file again when it has changed, until ctx ends. A pipe, as a shell's <(psql ...), can be read only once.
func (l *trail) follow(ctx context.Context) {
	if stat, err := os.Stat(l.file); err == nil && !stat.Mode().IsRegular() {
		return
	}
	for pause(ctx, tendEvery) {
		l.refresh()
	}
}

// refresh reads the file if it has changed.
func (l *trail) refresh() {
	was := l.last.Load()
	stat, err := os.Stat(l.file)
	if err == nil && was.stat != nil && stat.Size() == was.stat.Size() && stat.ModTime().Equal(was.stat.ModTime()) {
		return
	}
	rows, err := readTrail(l.file)
	if len(rows) == 0 && err != nil { // rows before a broken one are shown
		rows = was.rows
	}
	l.last.Store(&trailRead{stat, rows, err})
}

// readTrail reads the rows of a file. With an error it returns the rows before the broken value.
func readTrail(file string) (rows []trailEntry, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if stat, err := f.Stat(); err == nil && stat.Size() > mostTrail {
		return nil, fmt.Errorf("%s has %d bytes, want %d at most", file, stat.Size(), mostTrail)
	}
	in := json.NewDecoder(io.LimitReader(f, mostTrail))
	for n := 1; ; n++ {
		var value json.RawMessage
		if err := in.Decode(&value); errors.Is(err, io.EOF) {
			return rows, nil
		} else if err != nil {
			return rows, fmt.Errorf("%s: value %d: %w", file, n, err)
		}
		list := []trailRow{{}}
		var to any = &list[0]
		if bytes.HasPrefix(value, []byte("[")) {
			to = &list
		}
		err := json.Unmarshal(value, to)
		before := len(rows)
		for _, row := range list {
			entry, wrong := row.entry()
			rows, err = append(rows, entry), errors.Join(err, wrong)
		}
		if err != nil {
			return rows[:before], fmt.Errorf("%s: value %d: %w", file, n, err)
		}
	}
}

func (r trailRow) entry() (trailEntry, error) {
	token, err := fence.Parse(r.Token.String())
	e := trailEntry{Resource: r.Resource, Token: fmt.Sprint(token.Revision()), Holder: r.Holder, Cause: r.Cause, rev: token.Revision()}
	text := r.GrantedAt
	if r.RefusedAt != "" {
		text, e.Highest = r.RefusedAt, r.Highest.String()
		_, wrong := fence.Parse(r.Highest.String())
		err = errors.Join(err, wrong)
	}
	at, wrong := readTime(text)
	end, _ := readTime(r.Released) // empty while a tenure lasts
	e.Begin, e.End = at, max(end, 0)
	return e, errors.Join(err, wrong)
}

// readTime parses a time as databases write it, to milliseconds. A time without a zone is in UTC, as in the tables.
func readTime(text string) (int64, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse(time.DateTime, text) // also with a fraction of a second
	}
	return at.UnixMilli(), err
}

// of returns the rows about a name: those of the tokens with these revisions, and those of the resource with this name.
func (l *trail) of(name string, revs map[int64]bool) *trailView {
	last := l.last.Load()
	v := &trailView{Rows: []trailEntry{}}
	if last.err != nil {
		v.Error = last.err.Error()
	}
	shown := make(map[bool]int) // number of refusals, and of tenures
	for _, e := range slices.Backward(last.rows) {
		refused := e.Highest != ""
		if (e.Resource == name || revs[e.rev]) && shown[refused] < mostShown {
			shown[refused]++
			v.Rows = append(v.Rows, e)
		}
	}
	return v
}
