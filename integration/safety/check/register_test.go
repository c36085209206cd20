package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// call is a request to a register and what the resource recorded of it. Times are in ms.
type call struct {
	from, to int
	verb     history.Verb
	value    string
	outcome  history.Outcome
	applied  map[int]history.Outcome // by time
}

func calls(all ...call) []history.Event {
	var events []history.Event
	for n, c := range all {
		id := int64(n + 1)
		send := history.Event{At: time.Duration(c.from) * ms, Kind: history.Send, Request: id, Name: "a", Verb: c.verb}
		if c.verb != history.Read {
			send.Value = c.value
		}
		events = append(events, send)
		if c.to > 0 {
			events = append(events, history.Event{
				At: time.Duration(c.to) * ms, Kind: history.Answer, Request: id, Outcome: c.outcome, Value: c.value,
			})
		}
	}
	for at := range 100 { // in the order of application
		for n, c := range all {
			if outcome, ok := c.applied[at]; ok {
				events = append(events, history.Event{
					At: time.Duration(at) * ms, Kind: history.Apply, Request: int64(n + 1), Name: "a", Verb: c.verb, Value: c.value,
					Outcome: outcome, Token: 1, Highest: 2,
				})
			}
		}
	}
	return events
}

// A request whose outcome the caller does not know may take effect at any moment from its sending until the resource
// recorded it. A request that the resource refused or did not record takes no effect.
func TestCheck_registerOutcomes(t *testing.T) {
	const ok, refused, unknown = history.OK, history.Refused, history.Unknown
	const write, read, increment = history.Write, history.Read, history.Increment
	done := func(at int) map[int]history.Outcome { return map[int]history.Outcome{at: ok} }
	first := call{1, 5, write, "1", ok, nil}
	logged := call{1, 5, write, "1", ok, done(3)}
	for name, c := range map[string]struct {
		legal bool
		calls []call
	}{
		"a refused write is not read":              {true, []call{first, {10, 15, write, "2", refused, nil}, {20, 25, read, "1", ok, nil}}},
		"a refused write is read":                  {false, []call{first, {10, 15, write, "2", refused, nil}, {20, 25, read, "2", ok, nil}}},
		"an unknown write is not read":             {true, []call{first, {10, 0, write, "2", "", nil}, {20, 25, read, "1", ok, nil}}},
		"an unknown write is read":                 {true, []call{first, {10, 15, write, "2", unknown, nil}, {20, 25, read, "2", ok, nil}}},
		"an unknown write is read and undone":      {false, []call{first, {10, 0, write, "2", "", nil}, {20, 25, read, "2", ok, nil}, {30, 35, read, "1", ok, nil}}},
		"an unknown write is read before":          {false, []call{first, {10, 15, read, "2", ok, nil}, {20, 0, write, "2", "", nil}}},
		"a write that was not applied is read":     {false, []call{logged, {10, 0, write, "2", "", nil}, {20, 25, read, "2", ok, done(22)}}},
		"a write is applied late":                  {true, []call{logged, {10, 0, write, "2", "", done(50)}, {20, 25, read, "1", ok, done(22)}, {60, 65, read, "2", ok, done(62)}}},
		"a write is applied and not read":          {false, []call{logged, {10, 0, write, "2", "", done(50)}, {60, 65, read, "1", ok, done(62)}}},
		"a write is refused and then applied":      {true, []call{logged, {10, 0, write, "2", "", map[int]history.Outcome{12: refused, 50: ok}}, {20, 25, read, "1", ok, done(22)}}},
		"a read without an answer":                 {true, []call{first, {10, 0, read, "", "", nil}, {20, 25, read, "1", ok, nil}}},
		"a counter that nobody has set":            {true, []call{{10, 15, read, "0", ok, nil}, {20, 25, increment, "1", ok, nil}}},
		"a value that nobody has set":              {false, []call{{10, 15, read, "5", ok, nil}}},
		"an increment of another number":           {false, []call{{10, 15, increment, "1", ok, nil}, {20, 25, increment, "3", ok, nil}}},
		"an increment without an answer":           {true, []call{{10, 0, increment, "1", "", nil}, {20, 25, increment, "2", ok, nil}}},
		"an increment that two made":               {false, []call{{10, 15, increment, "1", ok, nil}, {20, 25, increment, "1", ok, nil}}},
		"a claim is no write":                      {true, []call{first, {10, 15, history.Claim, "", ok, nil}, {20, 25, read, "1", ok, nil}}},
		"the file is not in the order of requests": {true, []call{{20, 25, read, "1", ok, nil}, first}},
	} {
		t.Run(name, func(t *testing.T) {
			got := checkers(check.Check(calls(c.calls...)))
			if c.legal {
				require.NotContains(t, got, "I4/register")
			} else {
				require.Contains(t, got, "I4/register")
			}
		})
	}
}
