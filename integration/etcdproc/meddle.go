//go:build unix

package etcdproc

import (
	"errors"
	"fmt"
	"io"
)

// Isolate drops what is sent between a member and the others that run, in both directions, while clients still reach all of
// them. A member that is started again later is not isolated.
func (c *Cluster) Isolate(p *Process) error { return c.eachLink(p, cutCommand) }

// Rejoin ends what Isolate has begun.
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

// Stall has the server apply nothing any more of what the cluster commits, until GoOn. It goes on to vote, to commit and, as
// a leader, to propose; what it is asked waits, and is refused as too many requests when 5,000 commits wait to be applied.
func (p *Process) Stall() error { return p.tell(stallCommand) }

// GoOn ends what Stall has begun.
func (p *Process) GoOn() error { return p.tell(goOnCommand) }

// tell gives the server a command and waits until it is done.
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
