package sqlmark

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/internal/clip"
)

// Claimant is the call of a verb, and marks are those of a resource. [admission.Marks.Refuse] says which claimants they
// accept.
type (
	Claimant = admission.Bid
	marks    = admission.Marks
)

// verb returns the name of a verb in errors.
func verb(c Claimant, name string) string {
	if c.Read && !c.Above {
		return name + " to read"
	}
	return name
}

// lifted returns the marks after the claimant was accepted. Unlike [admission.Marks.After] it keeps and raises a read
// mark that is not above the write mark: guards of readers look for their own token in it.
func lifted(m marks, c Claimant) marks {
	if c.Read {
		m.Read = max(m.Read, c.Token)
	} else {
		m.Write = max(m.Write, c.Token)
	}
	if m.Lock == "" || c.Moves {
		m.Lock = c.Lock
	}
	return m
}

// markState is the result of a guard.
type markState struct {
	marks           // before the guard
	announced marks // by claims of one lock that may still wait for older transactions; these marks only refuse
	snapshot  bool  // the transaction's snapshot may be older than its lock on the mark
	trace     bool  // the transaction has an exclusive lock on the mark and must write it
}

// has reports whether an accepted claimant changes nothing.
func (s markState) has(c Claimant) bool { return lifted(s.marks, c) == s.marks }

// withAnnounced returns the marks with those that are announced, if these count for the claimant. The announcement of
// another lock's claim does not: that claim may have been refused since.
func (s markState) withAnnounced(c Claimant) marks {
	m := s.marks
	if follows := lifted(m, c).Lock; follows == "" || follows == s.announced.Lock {
		m.Write, m.Read = max(m.Write, s.announced.Write), max(m.Read, s.announced.Read)
	}
	return m
}

// table is a legal name, in parts and quoted for its dialect.
type table struct {
	schema, name string // schema may be empty
	quoted       string
}

func parseTable(pkg, field, s string, most int, dialect Dialect) (table, error) {
	schema, name, found := strings.Cut(s, ".")
	if !found {
		schema, name = "", schema
	}
	if found && !legalIdentifier(schema, maxIdentifier) || !legalIdentifier(name, most) {
		return table{}, fmt.Errorf("%s: Options.%s is %s, want table or schema.table, each 1 to %d letters, "+
			"digits and underscores, the first not a digit", pkg, field, clip.Quote(s), most)
	}
	return newTable(schema, name, dialect), nil
}

func newTable(schema, name string, dialect Dialect) table {
	t := table{schema: schema, name: name, quoted: dialect.quote(name)}
	if schema != "" {
		t.quoted = dialect.quote(schema) + "." + t.quoted
	}
	return t
}

// beside returns the table in the same schema whose name is t's name with a suffix.
func (t table) beside(dialect Dialect, suffix string) table {
	return newTable(t.schema, t.name+suffix, dialect)
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func legalIdentifier(s string, most int) bool { return len(s) <= most && identifier.MatchString(s) }
