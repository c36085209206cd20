package mix

import (
	"fmt"
	"math/rand/v2"
)

// form is what a resource is.
type form int

const (
	register form = iota
	set
	counter
	forms
)

// names are what a round locks, campaigns for and writes to.
type names struct {
	Hot, Cold, Elections []string
}

// namesPrefix begins all names, and is all that clients have permission on.
const namesPrefix = "mix/"

// roundPrefix begins the names of a round.
func roundPrefix(round int) string { return fmt.Sprintf("%s%05d-", namesPrefix, round) }

func roundNames(round int) names {
	name := func(name string) string { return roundPrefix(round) + name }
	return names{
		// One lies below the other, and they must not know of each other.
		Hot:       []string{name("hot"), name("hot/below"), name("hot2")},
		Cold:      []string{name("cold0"), name("cold1"), name("cold2"), name("cold3"), name("cold4"), name("cold5"), name("cold6"), name("cold7"), name("cold8")},
		Elections: []string{name("lead0"), name("lead1"), name("lead2")},
	}
}

// preferring is the election in which candidates have priorities and leaders transfer their office.
func (n names) preferring() string { return n.Elections[2] }

// inSQL reports whether the resource of that name is in a database: a register.
func (n names) inSQL(name string) bool { return len(n.Cold) > 0 && name == n.Cold[0] }

// quiet are the locks that sleepwalkers take as readers and as writers: of a register, a set and a counter.
func (n names) quiet() []string { return n.Cold[1:4] }

// shared are the locks that readers take.
func (n names) shared() []string { return append([]string{n.Hot[0], n.Hot[2]}, n.quiet()...) }

// own is a name for somebody who is not of a crew. It has no resource.
func (n names) own(whose string) string { return n.Hot[0] + "-own-" + whose }

// all are all of them.
func (n names) all() []string {
	return append(append(append([]string{}, n.Hot...), n.Cold...), n.Elections...)
}

// locks are all but the elections.
func (n names) locks() []string { return append(append([]string{}, n.Hot...), n.Cold...) }

// form of the resource of that name; each kind has all forms.
func (n names) form(name string) form {
	for _, group := range [][]string{n.Hot, n.Cold, n.Elections} {
		for i, s := range group {
			if s == name {
				return form(i) % forms
			}
		}
	}
	return register
}

// pick returns one of a list.
func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }
