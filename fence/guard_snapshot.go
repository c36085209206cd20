package fence

import (
	"fmt"
	"maps"
	"slices"
)

// Marks returns a copy of all write marks. It does not wait for a function that [Guard.Do] is running. The function
// itself may call it and sees its own token as the mark. Marks reads one mark after the other: each is at least its
// value when Marks was called.
//
// To keep marks over a restart, save a mark before the write that it accepted, or in one transaction with it. A mark
// that is saved later can be lost in between, and the restarted Guard would accept a token that it had fenced. For the
// same reason save the marks before you answer a Claim. A saved mark whose write then fails does no harm. If two
// snapshots are saved concurrently, a saved mark must not go back. If there are readers, save the marks of
// [Guard.ReadMarks] too. If tokens come with the names of locks, save [Guard.Locks] too, and load them with
// [Guard.LoadLocks]: otherwise the restarted Guard follows the lock of the first token that comes.
func (g *Guard) Marks() map[string]Token {
	return snapshot(g, func(m *marks) Token { return m.write })
}

// ReadMarks is [Guard.Marks] for the read marks.
func (g *Guard) ReadMarks() map[string]ReadToken {
	return snapshot(g, func(m *marks) ReadToken { return ReadToken(m.read) })
}

// Locks is [Guard.Marks] for the names of the locks that the resources follow.
func (g *Guard) Locks() map[string]string {
	return snapshot(g, func(m *marks) string { return m.lock })
}

// snapshot returns the values that are not zero.
func snapshot[T comparable](g *Guard, of func(*marks) T) map[string]T {
	all := make(map[string]T)
	var zero T
	for resource, m := range g.marks.Range {
		if v := of(m.(*mark).marks.Load()); v != zero {
			all[resource.(string)] = v
		}
	}
	return all
}

// Load raises the write marks to those of a snapshot by [Guard.Marks]. Call it before the Guard is used. Higher marks
// stay. If a token in the snapshot is not valid, Load changes no mark, and the error matches [ErrInvalidToken] and
// names the resource.
//
// Load raises one mark after the other and waits for a function that [Guard.Do] is running for that resource.
func (g *Guard) Load(marks map[string]Token) error { return load(g, marks, writer) }

// LoadRead is [Guard.Load] for the read marks.
func (g *Guard) LoadRead(marks map[string]ReadToken) error { return load(g, marks, reader) }

func load[T ~int64](g *Guard, marks map[string]T, as func(T) claimant) error {
	for _, resource := range slices.Sorted(maps.Keys(marks)) { // sorted: the same error each time
		if err := g.validate(resource, bare(as(marks[resource]))); err != nil {
			return err
		}
	}
	for resource, t := range marks {
		g.find(resource).load(bare(as(t)))
	}
	return nil
}

// LoadLocks makes the resources follow the locks of a snapshot by [Guard.Locks], as [Guard.Load] raises the marks. A
// resource that already follows a lock keeps it. If [CheckLock] refuses a name, LoadLocks changes nothing, and the error
// names the resource.
func (g *Guard) LoadLocks(locks map[string]string) error {
	for _, resource := range slices.Sorted(maps.Keys(locks)) {
		if err := checkResource(resource); err != nil {
			return err
		}
		if err := CheckLock(locks[resource]); err != nil {
			return fmt.Errorf("%w (resource %q)", err, resource)
		}
	}
	for resource, lock := range locks {
		g.find(resource).load(bid{lock: lock})
	}
	return nil
}
