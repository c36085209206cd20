package election

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasefence/leasefence/internal/candidacy"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// The bounds of the options.
const (
	maxValue    = 4 << 10
	maxPriority = 9999
)

// Options of a candidate. The zero value of a field is its default.
type Options struct {
	// Value is what others see of the leader, such as its address; [Leadership.Transfer] names a candidate by it. At
	// most 4 KiB. Default: the session's Owner.
	Value string
	// Priority puts a candidate before those of a lower one that wait: it leads after the next change. 0 to 9999.
	// Default 0, which is that of etcd's own candidates. See the package's section on priority.
	Priority int
	// Health is told of the leadership from its beginning to its end. Default: none.
	Health *Health

	// Rejoin has [Run] campaign again when lead has returned nil. Default: Run returns.
	Rejoin bool
	// Lost is called by [Run] each time that it campaigns again after a leadership was lost, when lead has returned: with
	// the loss, which matches [lease.ErrLost], joined with lead's own error. A loss with which Run ends, since ctx has
	// ended too or the session was closed, is in its error instead. Default: none.
	Lost func(error)
	// StopTimeout is how long [Run] waits for lead to return after its context has ended, before it calls Fatal. Not
	// negative. Default: for ever.
	StopTimeout time.Duration
	// Fatal is called once for a lead that has not returned within StopTimeout. It is to end the process: the lease
	// then expires by itself. If Fatal returns, Run goes on waiting for lead, and the lease is neither let go nor
	// taken by anybody else as long as the session renews it. Default: none.
	Fatal func(error)
}

// check refuses bad input before anything is sent.
func check(session *lease.Session, name string, opts Options) (candidacy.Session, error) {
	if session == nil {
		return nil, errors.New("election: session is nil, want a lease.Session")
	}
	if err := queue.CheckName(name); err != nil {
		return nil, fmt.Errorf("election: name %w", err)
	}
	if err := checkValue("Options.Value", opts.Value); err != nil {
		return nil, err
	}
	switch {
	case opts.Priority < 0 || opts.Priority > maxPriority:
		return nil, fmt.Errorf("election: Options.Priority is %d, want 0 to %d", opts.Priority, maxPriority)
	case opts.StopTimeout < 0:
		return nil, fmt.Errorf("election: Options.StopTimeout is %v, want 0 (for ever) or more", opts.StopTimeout)
	}
	return candidacy.Of(session), nil
}

func checkValue(field, value string) error {
	if len(value) > maxValue {
		return fmt.Errorf("election: %s has %d bytes, want 0 to %d", field, len(value), maxValue)
	}
	return nil
}
