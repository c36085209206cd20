package mix

import (
	"fmt"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// Restored is what was seen when the cluster was taken back to a snapshot after the mix. What is wrong in it is a violation
// of I9.
type Restored struct {
	Duration     time.Duration `json:"duration"`     // of the whole part
	Down         time.Duration `json:"down"`         // until all members served again
	Back         int64         `json:"back"`         // revisions that were lost
	Handles      int           `json:"handles"`      // that were live when the members were killed
	Ended        int           `json:"ended"`        // of these, by a loss
	EndedTold    int           `json:"endedTold"`    // of these, told of the restore
	LastEnded    time.Duration `json:"lastEnded"`    // since the members served again; 0: all had ended by then
	Told         int           `json:"told"`         // acquisitions that failed with lease.ErrRestored
	Explained    int           `json:"explained"`    // refusals that were a restore, by Explain
	Refused      int           `json:"refused"`      // writes and claims with a lower token, afterwards
	ControlLower int           `json:"controlLower"` // that the unfenced control has taken
	Lower        int           `json:"lower"`        // that the resource has taken
	Recovered    int           `json:"recovered"`    // tenures of the next era, all of whose writes were accepted
}

// met reports whether there was anything for the restore to be noticed by, in each of the ways there are.
func (r *Restored) met() bool {
	return r.Ended > 0 && r.Told > 0 && r.Explained > 0 && r.ControlLower > 0 && r.Recovered > 0
}

// String is its part of the report.
func (r *Restored) String() string {
	return fmt.Sprintf("restored from a snapshot, %d revisions back: %v in all, the cluster was away for %v\n",
		r.Back, r.Duration.Round(time.Second), r.Down.Round(time.Millisecond)) + table("  %-43s %8v\n", []row{
		{"handles that were live", r.Handles},
		{"  ended by a loss", r.Ended},
		{"  told of the restore", r.EndedTold},
		{"  the last, after the cluster was back", r.LastEnded.Round(time.Millisecond)},
		{"acquisitions told of the restore", r.Told},
		{"refusals explained by the restore", r.Explained},
		{"lower tokens refused after it", r.Refused},
		{"  taken by the unfenced control", r.ControlLower},
		{"  accepted", r.Lower},
		{"tenures of the next era", r.Recovered},
	})
}

// sift goes through what the resources have applied, in that order, from the time on at which the members were killed, and
// returns what breaks I9. Before that a lower token is wrong as well.
func (r *Restored) sift(events []history.Event, killed time.Duration) (wrong []string) {
	accepted, read := map[string]history.Event{}, map[string]history.Event{} // by resource: the highest, of writers and of readers
	for _, e := range events {
		if e.Kind != history.Apply || e.Verb == history.Read {
			continue
		}
		highest, control := accepted[e.Name], strings.HasSuffix(e.Name, history.UnfencedMark)
		marks := accepted
		if e.Verb.OfReader() {
			marks = read
		} else if read[e.Name].Token > highest.Token {
			highest = read[e.Name]
		}
		lower := e.Token < highest.Token
		switch {
		case e.Outcome == history.Refused:
			if e.At >= killed {
				r.Refused++
			}
		case e.Outcome != history.OK:
		case lower && control:
			if e.At >= killed {
				r.ControlLower++
			}
		case lower:
			r.Lower++
			wrong = append(wrong, fmt.Sprintf("%s: %s with token %s was accepted after token %s",
				e.Name, e.Verb, e.Token.Text(), highest.Token.Text()))
		default:
			if e.Token >= marks[e.Name].Token {
				marks[e.Name] = e
			}
		}
	}
	return wrong
}

// nextEra is that of the tokens after the restore.
const nextEra = 1

// stranger says why a token is not one that may be given out after the restore, "" if it is. Highest is the highest token
// of the era before.
func stranger(token, highest fence.Token) string {
	if token.Era() == nextEra && token > highest {
		return ""
	}
	return fmt.Sprintf("token %s was given out in era %d, after token %s", token.Text(), nextEra, highest.Text())
}
