package sqlmark

import "github.com/leasefence/leasefence/fence"

// Claimant is a token, and what is known of its lock.
type Claimant struct {
	fence.Token

	read   bool   // it raises the read mark
	above  bool   // it is like a reader at a node above the end of its path: the token is a writer's
	lock   string // "" if the token came without a name
	strict bool   // a token without a name is refused at a resource that follows a lock
	moving bool   // the resource is to follow this lock
}

// reads reports whether the token is a reader's.
func (c Claimant) reads() bool { return c.read && !c.above }

// verb returns the name of a verb in errors.
func (c Claimant) verb(name string) string {
	if c.reads() {
		return name + " to read"
	}
	return name
}

// marks are the highest token of a writer and that of a reader at a resource, each 0 if none has come, and the lock
// that it follows, "" if no token has come with a name.
type marks struct {
	write, read fence.Token
	lock        string
}

// lifted returns the marks after the claimant was accepted.
func (m marks) lifted(c Claimant) marks {
	if c.read {
		m.read = max(m.read, c.Token)
	} else {
		m.write = max(m.write, c.Token)
	}
	if m.lock == "" || c.moving {
		m.lock = c.lock
	}
	return m
}

// has reports whether an accepted claimant changes nothing.
func (m marks) has(c Claimant) bool { return m.lifted(c) == m }

// refuse returns an error if the claimant is of another lock than the resource follows, or is stale: a writer if it is
// older than one of the marks, a reader if it is older than the write mark. If both marks refuse, the error has the
// write mark. A stale token without a name is reported as stale.
func refuse(resource string, c Claimant, m marks) error {
	other := m.lock != "" && c.lock != m.lock && !c.moving
	switch {
	case other && c.lock != "":
	case c.Token < m.write:
		return &fence.StaleError{Resource: resource, Token: c.Token, Highest: m.write, Read: c.reads()}
	case !c.read && c.Token < m.read:
		return &fence.StaleError{Resource: resource, Token: c.Token, Highest: m.read, ByReader: true}
	case !other || !c.strict:
		return nil
	}
	return &fence.OtherLockError{Resource: resource, Token: c.Token, Read: c.reads(), Lock: c.lock, Follows: m.lock}
}

// markState is the result of a guard.
type markState struct {
	marks           // before the guard
	announced marks // by claims of one lock that may still wait for older transactions; these marks only refuse
	snapshot  bool  // the transaction's snapshot may be older than its lock on the mark
	trace     bool  // the transaction has an exclusive lock on the mark and must write it
}

// refuses returns an error if the marks, or those that are announced, refuse the claimant. The announcement of another
// lock's claim does not count: that claim may have been refused since.
func (s markState) refuses(resource string, c Claimant) error {
	m := s.marks
	if follows := m.lifted(c).lock; follows == "" || follows == s.announced.lock {
		m.write, m.read = max(m.write, s.announced.write), max(m.read, s.announced.read)
	}
	return refuse(resource, c, m)
}
