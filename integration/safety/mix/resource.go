package mix

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// store serves the resources of a round over HTTP. Each resource has a twin, the unfenced control, which gets the same
// writes and accepts all of them.
type store struct {
	log      record
	guard    fence.Guard
	database *database        // of the resource that is in a database; nil: none is
	items    map[string]*item // by name; not changed
	inner    http.Handler     // checks the token, then applies
	check    bool             // whether tokens are checked; false: sabotage
}

// item is a resource and its twin.
type item struct {
	name string
	form form
	sql  bool // it is in the database

	mu     sync.Mutex // guards the fields below; held until the event is recorded, never while a token is checked
	fenced state
	twin   state
	seen   fence.Token // the highest that the twin got
	steps  int         // claims and updates that writers made at the fenced resource
	open   int         // steps that are recorded but perhaps not committed, in the database
}

// step records a writer's step in the database. open is 1 if the step is not committed yet, else 0.
func (it *item) step(record func(), open int) {
	it.mu.Lock()
	defer it.mu.Unlock()
	record()
	it.steps++
	it.open += open
}

// shut ends open steps, which were committed or rolled back.
func (it *item) shut(open int) {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.open -= open
}

// state is what a resource holds.
type state struct {
	value   string // of a register
	members map[string]bool
	count   int64
}

func newStore(log record, n names, d *database, sabotage Saboteur) (*store, error) {
	s := &store{log: log, database: d, items: map[string]*item{}, check: !sabotage.ForgetToken}
	for _, name := range n.all() {
		s.items[name] = &item{name: name, form: n.form(name), sql: d != nil && n.inSQL(name)}
	}
	middleware, err := httpfence.NewAtomicMiddleware(
		func(r *http.Request) string { return r.FormValue("name") }, &s.guard, httpfence.Options{Refuse: s.refuse})
	if err != nil {
		return nil, err
	}
	s.inner = middleware(http.HandlerFunc(s.apply))
	return s, nil
}

// ServeHTTP applies a request to the twin and then passes it to the fenced resource.
func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	it, q := s.items[r.FormValue("name")], requestOf(r)
	if it == nil {
		http.Error(w, "no such resource", http.StatusNotFound)
		return
	}
	it.mu.Lock()
	if !q.verb.Reads() && !q.verb.Claims() {
		it.seen = max(it.seen, q.token)
		it.twin.apply(q)
		s.log.Record(q.event(it.name+history.UnfencedMark, history.OK, it.seen))
	}
	it.mu.Unlock()
	switch {
	case !s.check:
		s.apply(w, r)
		return
	case it.sql:
		s.serve(w, r, it)
		return
	}
	s.inner.ServeHTTP(w, r)
}

// lateMark ends the value of a write that a register applies slowly, so that other requests wait: a token that is not
// stale when its write arrives may be stale when the write is applied.
const lateMark = ".late"

// apply serves a request whose token has been checked.
func (s *store) apply(w http.ResponseWriter, r *http.Request) {
	it, q := s.items[r.FormValue("name")], requestOf(r)
	if q.verb.OfReader() {
		s.serveReader(w, r, it, q)
		return
	}
	if strings.HasSuffix(q.value, lateMark) {
		time.Sleep(40 * time.Millisecond)
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if q.verb == history.Read {
		q.value = it.fenced.read(it.form)
	} else {
		it.fenced.apply(q)
		it.steps++
	}
	s.log.Record(q.event(it.name, history.OK, s.guard.Marks()[it.name]))
	_, _ = w.Write([]byte(q.value)) // it fails only if the client has gone
}

// serveReader serves a reader, whose token the middleware has checked. It asks the guard again, and repeats that if a
// writer's step came before the read is recorded. So the record is in order, and no request waits for the guard while
// it holds the item's mutex.
func (s *store) serveReader(w http.ResponseWriter, r *http.Request, it *item, q request) {
	check := s.guard.CheckRead
	if q.verb == history.ClaimRead {
		check = s.guard.ClaimRead
	}
	for done := false; !done; {
		it.mu.Lock()
		steps := it.steps
		it.mu.Unlock()
		if s.check {
			if err := check(it.name, fence.ReadToken(q.token)); err != nil {
				s.refuse(w, r, err)
				return
			}
		}
		it.mu.Lock()
		if done = it.steps == steps; done {
			if q.verb == history.CheckRead {
				q.value = it.fenced.read(it.form)
			}
			s.log.Record(q.event(it.name, history.OK, fence.Token(s.guard.ReadMarks()[it.name])))
		}
		it.mu.Unlock()
	}
	_, _ = w.Write([]byte(q.value)) // it fails only if the client has gone
}

// refuse answers and records a request that the middleware or the database has refused.
func (s *store) refuse(w http.ResponseWriter, r *http.Request, err error) {
	q, outcome := requestOf(r), history.Failed
	var highest fence.Token
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		outcome, highest = history.Refused, stale.Highest
	}
	e := q.event(r.FormValue("name"), outcome, highest)
	e.Error = err.Error()
	s.log.Record(e)
	if !httpfence.Error(w, err) {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// request is a request to a resource.
type request struct {
	id    int64
	verb  history.Verb
	token fence.Token
	value string
}

func requestOf(r *http.Request) request {
	id, _ := strconv.ParseInt(r.FormValue("request"), 10, 64)
	token, _ := fence.Parse(r.Header.Get(httpfence.Header) + r.Header.Get(httpfence.ReadHeader)) // at most one of them
	return request{id: id, verb: history.Verb(r.FormValue("verb")), token: token, value: r.FormValue("value")}
}

func (q request) event(name string, outcome history.Outcome, highest fence.Token) history.Event {
	return history.Event{
		Kind: history.Apply, Name: name, Verb: q.verb, Token: q.token, Request: q.id,
		Outcome: outcome, Value: q.value, Highest: highest,
	}
}

func (s *state) apply(q request) {
	switch q.verb {
	case history.Write:
		s.value = q.value
	case history.Add:
		if s.members == nil {
			s.members = map[string]bool{}
		}
		s.members[q.value] = true
	case history.Increment:
		s.count, _ = strconv.ParseInt(q.value, 10, 64)
	}
}

// read returns the members of a set sorted and separated by commas.
func (s *state) read(f form) string {
	switch f {
	case set:
		return strings.Join(slices.Sorted(maps.Keys(s.members)), ",")
	case counter:
		return strconv.FormatInt(s.count, 10)
	default:
		return s.value
	}
}

// resources is the server of the present round's store.
type resources struct {
	*httptest.Server

	store atomic.Pointer[store] // nil between rounds
}

func serveResources() *resources {
	r := &resources{}
	r.Server = httptest.NewServer(r)
	return r
}

func (r *resources) addr() string { return r.Listener.Addr().String() }

// ServeHTTP passes a request on to the present store.
func (r *resources) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s := r.store.Load()
	if s == nil {
		http.Error(w, "no round", http.StatusServiceUnavailable)
		return
	}
	s.ServeHTTP(w, req)
}
