// Package ledger is the resource of the examples: a list of entries in memory, behind HTTP. Each entry has to continue
// the one before, so writers have to take turns. A lock lets them; the ledger refuses the late write of a writer whose
// turn has ended.
package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

const (
	resource = "ledger" // the name of the ledger's mark
	maxBody  = 1 << 10  // bytes that are read of a request or an answer; an entry has about 60
)

// Entry is a line of the ledger. The writer computes Seq and Balance from the entry before.
type Entry struct {
	Seq     int
	Amount  int
	Balance int
	Writer  string
}

func (e Entry) String() string {
	return fmt.Sprintf("#%d (%+d, balance %d)", e.Seq, e.Amount, e.Balance)
}

// Next is the entry that continues e.
func (e Entry) Next(amount int, writer string) Entry {
	return Entry{Seq: e.Seq + 1, Amount: amount, Balance: e.Balance + amount, Writer: writer}
}

// Ledger is the resource. It does not check what entries say.
type Ledger struct {
	// Say is called for each claim, for the first write of each token, and for each write with a stale token.
	Say func(format string, args ...any)
	// NoFence has the ledger accept stale tokens, to show what fencing prevents.
	NoFence bool

	guard fence.Guard // refuses tokens that are older than the newest one

	mu      sync.Mutex // guards the fields below
	entries []Entry
	said    fence.Token // the newest token whose write was reported
}

// claim begins a writer's tenure: from now on the ledger refuses older tokens.
func (l *Ledger) claim(ctx context.Context) error {
	if l.NoFence {
		return nil
	}
	token, _ := fence.FromContext(ctx)
	err := l.guard.CheckContext(ctx, resource, token)
	if err == nil {
		l.Say("refuses tokens below %v from now on", token)
	}
	return err
}

// write appends an entry. The check of the token and the write are one step.
func (l *Ledger) write(ctx context.Context, e Entry) error {
	token, _ := fence.FromContext(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func() error {
		l.entries = append(l.entries, e)
		return nil
	}
	err := l.guard.DoContext(ctx, resource, token, add)
	switch {
	case errors.Is(err, fence.ErrStale) && l.NoFence:
		l.Say("ACCEPTS %s's %v with the stale token %v: it does not check tokens", e.Writer, e, token)
		return add()
	case err != nil:
		l.Say("REFUSES %s's %v: %v", e.Writer, e, err)
	case token > l.said:
		l.said = token
		l.Say("accepts %s's %v with token %v", e.Writer, e, token)
	}
	return err
}

// Entries are the entries so far.
func (l *Ledger) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// Check returns an error if an entry does not continue the entry before it.
func (l *Ledger) Check() error {
	var last Entry
	for _, e := range l.Entries() {
		if e != last.Next(e.Amount, e.Writer) {
			return fmt.Errorf("the ledger is corrupt: %s wrote %v without having seen %s's %v", e.Writer, e, last.Writer, last)
		}
		last = e
	}
	return nil
}

// Handler serves the ledger: POST /claim, POST /entries and GET /entries/last.
func (l *Ledger) Handler() (http.Handler, error) {
	// The middleware puts the token into the context, and refuses writes without one. It does not decide: the ledger
	// does, in one step with the write.
	withToken, err := httpfence.NewMiddleware(
		func(*http.Request) string { return resource },
		func(context.Context, string, fence.Token) error { return nil },
		httpfence.Options{},
	)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /claim", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, l.claim(r.Context()))
	})
	mux.HandleFunc("POST /entries", func(w http.ResponseWriter, r *http.Request) {
		var e Entry
		err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&e)
		if err == nil {
			err = l.write(r.Context(), e)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("GET /entries/last", func(w http.ResponseWriter, _ *http.Request) {
		var last Entry
		if all := l.Entries(); len(all) > 0 {
			last = all[len(all)-1]
		}
		answer(w, last, nil)
	})
	return withToken(mux), nil
}

func answer(w http.ResponseWriter, value any, err error) {
	switch {
	case err == nil:
		_ = json.NewEncoder(w).Encode(value) // an error means that the reader has gone
	case !httpfence.Error(w, err): // for a refusal it answers 412, with the token and the mark
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
