package mix

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// tape writes the history of a run, one file for each round. Between two rounds events are dropped. The numbers that it
// gives out are unique in the run: clients' processes have their own ranges above them. It also knows who holds what.
type tape struct {
	*history.Recorder

	dir  string
	file *os.File // of the present round

	mu      sync.Mutex              // guards the fields below
	holding map[int64]history.Event // by Op: the Grant events of handles that are held
	led     map[string]int64        // by election: the revision of its last leader's token
}

func newTape(dir string) *tape {
	t := &tape{
		Recorder: history.NewRecorder(nil, history.NewClock(), 0), dir: dir,
		holding: map[int64]history.Event{}, led: map[string]int64{},
	}
	t.Seen = t.follow
	return t
}

func (t *tape) begin(tb testing.TB, round int) {
	tb.Helper()
	var err error
	t.file, err = os.Create(filepath.Join(t.dir, fmt.Sprintf("history-%05d.jsonl", round)))
	require.NoError(tb, err)
	require.NoError(tb, t.To(t.file))
}

func (t *tape) end(tb testing.TB) []history.Event {
	tb.Helper()
	require.NoError(tb, errors.Join(t.To(nil), t.file.Close()))
	all, err := history.ReadFile(t.file.Name())
	require.NoError(tb, err)
	return all
}

func (t *tape) follow(e history.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e.Kind == history.Grant && !strings.HasSuffix(e.Name, history.PeerMark): // no fault takes the peer's mutex
		t.holding[e.Op] = e
		if e.Verb == history.Campaign {
			t.led[e.Name] = max(t.led[e.Name], e.Token.Revision())
		}
	case e.Kind == history.Release:
		delete(t.holding, e.Op)
	case e.Kind == history.Heal && e.Name == history.ClientKilled: // another process has taken its place
		maps.DeleteFunc(t.holding, func(_ int64, held history.Event) bool { return held.Client() == e.Target })
	}
}

// fault records a fault that has lasted from then until now.
func (t *tape) fault(from time.Duration, e history.Event) {
	e.At, e.Kind, e.Fault = from, history.Fault, t.ID()
	t.Record(e)
	e.At, e.Kind = 0, history.Heal
	t.Record(e)
}

// lastLed returns the revision of the token of an election's last leader, 0 if nobody has led.
func (t *tape) lastLed(election string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.led[election]
}

// held returns the grants that a client's actors hold, or those of all clients, ordered by Op.
func (t *tape) held(client string) (held []history.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, op := range slices.Sorted(maps.Keys(t.holding)) {
		if e := t.holding[op]; client == "" || e.Client() == client {
			held = append(held, e)
		}
	}
	return held
}
