package s3fence_test

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/leasefence/leasefence/fence/s3fence"
)

// ledger is a store in memory that counts requests and runs functions at chosen steps.
type ledger struct {
	memory

	gets, puts int
	at         map[step]func() // each runs once
}

// step is the moment before a request about the object rows, or before its answer.
type step struct {
	method   string
	answered bool // before the answer
}

var steps = []step{{http.MethodGet, false}, {http.MethodGet, true}, {http.MethodPut, false}, {http.MethodPut, true}}

func (l *ledger) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet:
		l.gets++
	case http.MethodPut:
		l.puts++
	}
	l.pass(r, false)
	resp, err := l.memory.RoundTrip(r)
	l.pass(r, true)
	return resp, err
}

func (l *ledger) pass(r *http.Request, answered bool) {
	s := step{r.Method, answered}
	if do := l.at[s]; do != nil && r.URL.Path == "/data/rows" {
		delete(l.at, s)
		do()
	}
}

// count returns the requests since it was last called.
func (l *ledger) count() (gets, puts int) {
	gets, puts = l.gets, l.puts
	l.gets, l.puts = 0, 0
	return gets, puts
}

// body returns the object as it is stored.
func (l *ledger) body(key string) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.objects["/data/"+key])
}

func newLedger(t *testing.T, opts s3fence.Options) (*ledger, *s3fence.Bucket) {
	t.Helper()
	l := new(ledger)
	return l, newBucket(t, l.RoundTrip, opts)
}
