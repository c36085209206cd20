package check

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// value is what a resource must hold after its updates. A set's elements are separated by commas.
type value struct {
	now     string
	updated *history.Event // the last update
}

// apply applies one event of the resource. It returns what is wrong with the event, "" if nothing is.
func (v *value) apply(e *history.Event) (wrong string) {
	if e.Outcome != history.OK {
		return ""
	}
	if e.Verb.Reads() {
		if e.Value != v.now && (v.now != "" || e.Value != "0") { // a counter that was never set is at 0
			wrong = fmt.Sprintf("a read returned %q, but the value is %q", e.Value, v.now)
		}
		return wrong
	}
	switch e.Verb {
	case history.Claim, history.ClaimRead:
		return ""
	case history.Add:
		v.now = strings.TrimPrefix(v.now+","+e.Value, ",")
	case history.Increment:
		was, err := strconv.ParseInt(cmp.Or(v.now, "0"), 10, 64)
		if err != nil || e.Value != strconv.FormatInt(was+1, 10) {
			wrong = fmt.Sprintf("an increment set the counter to %q, which was at %q", e.Value, v.now)
		}
		v.now = e.Value
	default:
		v.now = e.Value
	}
	v.updated = e
	return wrong
}
