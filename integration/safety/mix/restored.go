package mix

import (
	"fmt"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// Restored is what happened when the cluster was restored from a snapshot after the mix. Errors in it are violations of
// I9.
type Restored struct {
	Duration     time.Duration `json:"duration"`     // of the whole part
	Down         time.Duration `json:"down"`         // from the kill until all members served again
	Back         int64         `json:"back"`         // revisions that were lost
	Handles      int           `json:"handles"`      // live when the members were killed
	Ended        int           `json:"ended"`        // of these: ended by a loss
	EndedTold    int           `json:"endedTold"`    // of these: by a loss that reports the restore
	LastEnded    time.Duration `json:"lastEnded"`    // after the members served again
	Told         int           `json:"told"`         // acquisitions that failed with lease.ErrRestored
	Explained    int           `json:"explained"`    // refusals for which Explain reported the restore
	Refused      int           `json:"refused"`      // after the restore: writes and claims with a lower token that were refused
	ControlLower int           `json:"controlLower"` // after the restore: those that the unfenced control has accepted
	Lower        int           `json:"lower"`        // those that the resource has accepted, at any time
	Recovered    int           `json:"recovered"`    // tenures of the next era whose writes were all accepted
}

// met reports whether the restore was noticed at least once in each possible way.
func (r *Restored) met() bool {
	return r.Ended > 0 && r.Told > 0 && r.Explained > 0 && r.ControlLower > 0 && r.Recovered > 0
}

// String returns the restore's part of the report.
func (r *Restored) String() string {
	return fmt.Sprintf("restored from a snapshot, %d revisions back: %v in all, the cluster was away for %v\n",
		r.Back, r.Duration.Round(time.Second), r.Down.Round(time.Millisecond)) + table("  %-43s %8v\n", []row{
		{"handles that were live", r.Handles},
		{"  ended by a loss", r.Ended},
		{"  by a loss that reports the restore", r.EndedTold},
		{"  the last, after the cluster was back", r.LastEnded.Round(time.Millisecond)},
		{"acquisitions that failed with ErrRestored", r.Told},
		{"refusals explained by the restore", r.Explained},
		{"lower tokens refused after it", r.Refused},
		{"  taken by the unfenced control", r.ControlLower},
		{"  accepted", r.Lower},
		{"tenures of the next era", r.Recovered},
	})
}

// sift goes through what the resources have applied and refused, in that order, and counts what happened after the
// members were killed. It returns the violations of I9: each accepted token below an earlier one, also before the
// restore.
func (r *Restored) sift(events []history.Event, killed time.Duration) (wrong []string) {
	accepted, read := map[string]history.Event{}, map[string]history.Event{} // by resource: the highest token of writers and of readers
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

// nextEra is the era of the tokens after the restore.
const nextEra = 1

// stranger returns why a token must not be granted after the era was raised, or "" if it may be. highest is the highest
// token of the era before.
func stranger(token, highest fence.Token) string {
	if token.Era() == nextEra && token > highest {
		return ""
	}
	return fmt.Sprintf("token %s was granted in era %d, after token %s", token.Text(), nextEra, highest.Text())
}
