package check

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// value is what a resource must hold after its updates: the elements of a set, or one value.
type value struct {
	set     map[string]bool
	last    string
	updated *history.Event // the last update
}

// apply applies one event of the resource. It returns what is wrong with the event, "" if nothing is.
func (v *value) apply(e *history.Event) (wrong string) {
	if e.Outcome != history.OK {
		return ""
	}
	switch e.Verb {
	case history.Add:
		if v.set == nil {
			v.set = map[string]bool{}
		}
		v.set[e.Value] = true
		v.updated = e
	case history.Increment:
		was, now := number(v.last), number(e.Value)
		if now != was+1 {
			wrong = fmt.Sprintf("an increment set the counter to %d, which was at %d", now, was)
		}
		v.last, v.updated = e.Value, e
	case history.Write:
		v.last, v.updated = e.Value, e
	case history.Read, history.CheckRead:
		wrong = v.read(e)
	case history.Claim, history.ClaimRead:
	}
	return wrong
}

// read compares the value that a read returned with the updates.
func (v *value) read(e *history.Event) string {
	if v.set == nil {
		if e.Value != v.last && (v.last != "" || number(e.Value) != 0) {
			return fmt.Sprintf("a read returned %q, but the value is %q", e.Value, v.last)
		}
		return ""
	}
	got := elements(e.Value)
	for s := range v.set {
		if !got[s] {
			return fmt.Sprintf("a read did not return element %q", s)
		}
	}
	if len(got) > len(v.set) {
		return fmt.Sprintf("a read returned %d elements, but there are %d", len(got), len(v.set))
	}
	return ""
}

// number parses the value of a counter. A counter that was never set is at 0.
func number(s string) int64 {
	n, err := strconv.ParseInt(cmp.Or(s, "0"), 10, 64)
	if err != nil {
		return -1 << 62 // no increment leads to or from it
	}
	return n
}

func elements(s string) map[string]bool {
	all := map[string]bool{}
	for e := range strings.SplitSeq(s, ",") {
		if e != "" {
			all[e] = true
		}
	}
	return all
}
