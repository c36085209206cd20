package sqlmark

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/leasefence/leasefence/internal/clip"
)

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
