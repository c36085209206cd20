package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// kind is what a worker reports.
type kind string

const (
	ready    kind = "ready"    // it has a session and is about to ask for the lock
	locked   kind = "locked"   // it has the lock and is about to claim the ledger
	writing  kind = "writing"  // it has read the ledger and looked at its lock, and is about to write
	written  kind = "written"  // the ledger has accepted the write
	refused  kind = "refused"  // the ledger has refused the write as stale
	unlocked kind = "unlocked" // it has let the lock go, or found it lost
)

// report is one line that a worker writes to its standard output.
type report struct {
	Kind  kind
	Text  string
	Token fence.Token   `json:",omitzero"`
	Key   string        `json:",omitzero"` // locked: in etcd
	TTL   time.Duration `json:",omitzero"` // ready: as granted
	Lost  bool          `json:",omitzero"` // unlocked: the lock was lost before
}

// link is a worker's end of the pipes to its parent.
type link struct {
	reports *json.Encoder
	heard   chan struct{}
}

func newLink(stdin io.Reader, stdout io.Writer) *link {
	l := &link{reports: json.NewEncoder(stdout), heard: make(chan struct{})}
	go l.listen(stdin)
	return l
}

// listen takes the parent's answers, a line each. It ends with the process, and the process with the pipe: that the
// parent is gone must be noticed whatever the worker is waiting for.
func (l *link) listen(stdin io.Reader) {
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		l.heard <- struct{}{}
	}
	fmt.Fprintln(os.Stderr, "the parent is gone")
	os.Exit(1)
}

// tell reports to the parent and returns when the parent answers that it may go on.
func (l *link) tell(r report) {
	if err := l.reports.Encode(r); err != nil {
		fmt.Fprintf(os.Stderr, "report to the parent: %v\n", err)
		os.Exit(1)
	}
	<-l.heard
}
