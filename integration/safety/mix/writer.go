package mix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// writer sends requests to the resources of a round. Its network loses some answers and delays some requests.
type writer struct {
	log    *history.Recorder
	addr   string
	client *http.Client
	idle   func()
}

func newWriter(log *history.Recorder, addr string, seed uint64) (*writer, error) {
	base := &http.Transport{MaxIdleConnsPerHost: 16}
	transport, err := httpfence.NewTransport(&lossy{base: base, rng: rand.New(rand.NewPCG(seed, 1))}, addr)
	if err != nil {
		return nil, err
	}
	return &writer{
		log: log, addr: addr, idle: base.CloseIdleConnections,
		client: &http.Client{Transport: transport, Timeout: 15 * time.Second},
	}, nil
}

func (w *writer) close() { w.idle() }

// send sends one request, without retries, and records it. The request does not end with the handle.
func (w *writer) send(actor, name string, op int64, t fence.Token, verb history.Verb, value string) (string, history.Outcome, error) {
	id := w.log.ID()
	if verb == history.Add {
		value = strconv.FormatInt(id, 10)
	}
	w.log.Record(history.Event{
		Kind: history.Send, Op: op, Actor: actor, Name: name, Token: t, Verb: verb, Value: value, Request: id,
	})
	got, outcome, err := w.ask(name, id, t, verb, value)
	e := history.Event{Kind: history.Answer, Request: id, Outcome: outcome, Value: got}
	if err != nil {
		e.Error = err.Error()
	}
	w.log.Record(e)
	return got, outcome, err
}

// ask makes the request and says what its sender knows of the outcome.
func (w *writer) ask(name string, id int64, t fence.Token, verb history.Verb, value string) (string, history.Outcome, error) {
	method := http.MethodPost
	if verb.Reads() || verb.OfReader() { // a reader's claim writes no data
		method = http.MethodGet
	}
	q := url.Values{"name": {name}, "request": {strconv.FormatInt(id, 10)}, "verb": {string(verb)}, "value": {value}}
	ctx := fence.NewContext(context.Background(), t)
	if verb.OfReader() {
		ctx = fence.NewReadContext(context.Background(), fence.ReadToken(t))
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+w.addr+"/?"+q.Encode(), http.NoBody)
	if err != nil {
		return "", history.Failed, err
	}
	resp, err := w.client.Do(r)
	if err != nil {
		return "", history.Unknown, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := httpfence.ReadError(resp); errors.Is(err, fence.ErrStale) {
		return "", history.Refused, err
	}
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return "", history.Unknown, err
	case resp.StatusCode != http.StatusOK:
		return "", history.Unknown, fmt.Errorf("status %d", resp.StatusCode)
	}
	return string(body), history.OK, nil
}

// errLost is the error of a request whose answer lossy has dropped.
var errLost = errors.New("the answer was lost")

// lossy delays one request of 50 and loses one answer of 50.
type lossy struct {
	base http.RoundTripper

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

// RoundTrip makes one attempt: a request of unknown outcome is not repeated.
func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	fate, delay := l.rng.IntN(50), time.Duration(l.rng.IntN(700))*time.Millisecond
	l.mu.Unlock()
	if fate == 0 {
		time.Sleep(delay)
	}
	resp, err := l.base.RoundTrip(r)
	if err == nil && fate == 1 {
		_ = resp.Body.Close()
		return nil, errLost
	}
	return resp, err
}
