//go:build unix

package etcdproc

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Isolate drops all messages between a member and the other running members, in both directions, while clients still
// reach all of them. Links to members that do not run are not cut, even if these members start later.
func (c *Cluster) Isolate(p *Process) error { return c.eachLink(p, cutCommand) }

// Rejoin undoes Isolate.
func (c *Cluster) Rejoin(p *Process) error { return c.eachLink(p, mendCommand) }

func (c *Cluster) eachLink(p *Process, verb string) error {
	var errs []error
	for _, other := range c.Members {
		if other != p && other.run != nil {
			errs = append(errs, p.tell(verb+" "+other.name()), other.tell(verb+" "+p.name()))
		}
	}
	return errors.Join(errs...)
}

// Stall makes the server stop applying committed entries, until GoOn. The server still votes, commits and, as a leader,
// proposes. Its clients' requests wait; once 5,000 entries wait to be applied, it refuses requests with "too many
// requests".
func (p *Process) Stall() error { return p.tell(stallCommand) }

// GoOn undoes Stall.
func (p *Process) GoOn() error { return p.tell(goOnCommand) }

// SlowDisk makes each sync of the server's log take longer by d, until the server restarts.
func (p *Process) SlowDisk(d time.Duration) error { return p.tell(slowCommand + " " + d.String()) }

// tell sends the server a command and waits until the server has executed it.
func (p *Process) tell(command string) error {
	if p.run == nil {
		return fmt.Errorf("etcdproc: server %s does not run", p.name())
	}
	if _, err := io.WriteString(p.run.Stdin, command+"\n"); err != nil {
		return fmt.Errorf("etcdproc: tell server %s to %s: %w", p.name(), command, err)
	}
	select {
	case line := <-p.lines:
		if line != doneLine {
			return fmt.Errorf("etcdproc: tell server %s to %s: %s", p.name(), command, line)
		}
		return nil
	case <-p.ended:
		return fmt.Errorf("etcdproc: tell server %s to %s: its process has ended", p.name(), command)
	}
}
