package election

import (
	"errors"
	"fmt"
	"time"

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
	// Priority ranks the candidates: a leader of a lower priority hands over to this candidate once the candidate has
	// waited for a second. 0 to 9999. Default 0. Candidates of etcd's own packages have none, and never hand over. See
	// the package's section on priority.
	Priority int
	// KeepLead keeps this candidate, when it leads, from handing over to a candidate of a higher priority. Default: it
	// hands over.
	KeepLead bool
	// Health checks the leadership from its beginning to its end. Default: none.
	Health *Health
}

// RunOption is an option of [Run].
type RunOption func(*runOptions)

type runOptions struct {
	rejoin      bool
	onLost      func(error)
	stopTimeout time.Duration
	onHang      func(error)
}

// WithRejoin has [Run] campaign again when lead has returned nil. Default: Run returns.
func WithRejoin() RunOption {
	return func(o *runOptions) { o.rejoin = true }
}

// WithOnLost has [Run] call f after lead has returned and before Run campaigns again, if the leadership was lost. The
// error is the loss, which matches [lease.ErrLost], joined with lead's own error. If Run ends instead, because ctx has
// ended too or the session was closed, f is not called and Run's error includes the loss. Default: none.
func WithOnLost(f func(error)) RunOption {
	return func(o *runOptions) { o.onLost = f }
}

// WithStopTimeout reports a lead that hangs: if lead has not returned d after its context has ended, [Run] writes a
// line to the session's log and calls onHang once. OnHang should end the process, and the lease then expires. If onHang
// returns, or is nil, Run goes on waiting for lead, and nobody else can lead as long as the session renews the lease. D
// is not negative. Default, also for 0: Run waits and reports nothing.
func WithStopTimeout(d time.Duration, onHang func(error)) RunOption {
	return func(o *runOptions) { o.stopTimeout, o.onHang = d, onHang }
}

func newRunOptions(options []RunOption) (o runOptions, err error) {
	for i, set := range options {
		if set == nil {
			return o, fmt.Errorf("election: option %d of %d is nil, want a RunOption", i+1, len(options))
		}
		set(&o)
	}
	if o.stopTimeout < 0 {
		return o, fmt.Errorf("election: WithStopTimeout is %v, want 0 (for ever) or more", o.stopTimeout)
	}
	return o, nil
}

// check refuses bad input before anything is sent.
func check(session *lease.Session, name string, opts Options) error {
	if session == nil {
		return errors.New("election: session is nil, want a lease.Session")
	}
	if err := queue.CheckName(name); err != nil {
		return fmt.Errorf("election: name %w", err)
	}
	if err := checkValue("Options.Value", opts.Value, 0); err != nil {
		return err
	}
	if opts.Priority < 0 || opts.Priority > maxPriority {
		return fmt.Errorf("election: Options.Priority is %d, want 0 to %d", opts.Priority, maxPriority)
	}
	return nil
}

func checkValue(field, value string, least int) error {
	if len(value) < least || len(value) > maxValue {
		return fmt.Errorf("election: %s has %d bytes, want %d to %d", field, len(value), least, maxValue)
	}
	return nil
}
