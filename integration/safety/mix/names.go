package mix

import (
	"fmt"
	"slices"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// names are the names that a round locks, campaigns for and writes to.
type names struct {
	Hot, Cold, Elections []string

	Paths     []string // of a tree, the root first
	Semaphore string
}

// permits is the number of permits of the semaphore.
const permits = 2

// namesPrefix is the prefix of all names, and clients have permission on nothing else. It has no slash, so that the
// names of two rounds are not in one tree.
const namesPrefix = "mix-"

// roundPrefix is the prefix of the names of a round.
func roundPrefix(round int) string { return fmt.Sprintf("%s%05d-", namesPrefix, round) }

func roundNames(round int) names {
	all := func(names ...string) []string {
		for i, name := range names {
			names[i] = roundPrefix(round) + name
		}
		return names
	}
	return names{
		Hot:       all("hot", "hot/below", "hot2"), // a lock and a lock below it are independent
		Cold:      all("cold0", "cold1", "cold2", "cold3", "cold4", "cold5", "cold6", "cold7", "cold8"),
		Elections: all("lead0", "lead1", "lead2"),
		Paths:     all("tree", "tree/a", "tree/b", "tree/a/c"), Semaphore: roundPrefix(round) + "many",
	}
}

// preferring is the election in which candidates have priorities and leaders transfer their leadership.
func (n names) preferring() string { return n.Elections[2] }

// inSQL reports whether the resource of that name is in a database: a register.
func (n names) inSQL(name string) bool { return name == n.Cold[0] }

// quiet are the locks that sleepwalkers take as readers and as writers: of a register, a set and a counter.
func (n names) quiet() []string { return n.Cold[1:4] }

// shared are the locks that readers take.
func (n names) shared() []string {
	return append([]string{n.Hot[0], n.Hot[2], n.Cold[0]}, n.quiet()...)
}

// sets are the locks that are also taken together.
func (n names) sets() []string { return append([]string{n.Cold[3]}, n.Cold[6:9]...) }

// own returns a name that no crew uses and that has no resource.
func (n names) own(whose string) string { return n.Hot[0] + "-own-" + whose }

// all are the names that have a resource. The semaphore gets one slot too many, so that the history shows a permit too
// many.
func (n names) all() []string {
	all := append(n.locks(), n.Elections...)
	for _, path := range n.Paths {
		all = append(all, nodeOf(path))
	}
	all = append(all, n.Semaphore)
	for slot := range permits + 1 {
		all = append(all, fmt.Sprintf("%s/~slot/%d", n.Semaphore, slot))
	}
	return all
}

// locks are those that are no elections, and of the plain kind.
func (n names) locks() []string { return slices.Concat(n.Hot, n.Cold) }

// update returns the verb that updates a name's resource: a register, a set or a counter. Each group of names has all.
func (n names) update(name string) history.Verb {
	verbs := []history.Verb{history.Write, history.Add, history.Increment}
	for _, group := range [][]string{n.Hot, n.Cold, n.Elections} {
		if i := slices.Index(group, name); i >= 0 {
			return verbs[i%len(verbs)]
		}
	}
	return history.Write
}
