package etcdtest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// peerGrace is how long connections between members may outlive the members. At the end of a request, net/http's
// abortPendingRead ends a pending read by setting the connection's read deadline to the past. etcd's timeoutConn sets a
// new deadline at each read and may overwrite that one. The read then lasts until rafthttp's ConnReadTimeout of 5 s,
// and the other end of the connection waits as long.
const peerGrace = 7 * time.Second

// peerGoroutines are the goroutines of connections between members, for which findLeaks waits peerGrace.
var peerGoroutines = []goleak.Option{
	goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
	goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
}

// Main runs a package's tests, fails them if a goroutine is left at the end, and exits. Call it from TestMain. No
// goroutine is exempt: all of etcd's goroutines end sooner or later.
func Main(m *testing.M) {
	etcdproc.Serve()
	code := m.Run()
	if code == 0 {
		if err := findLeaks(); err != nil {
			fmt.Fprintf(os.Stderr, "etcdtest: tests passed and left goroutines behind: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// findLeaks returns an error that lists the goroutines that are left. If only peerGoroutines are left, it waits for
// them.
func findLeaks() error {
	if err := goleak.Find(peerGoroutines...); err != nil {
		return err
	}
	deadline := time.Now().Add(peerGrace)
	for {
		// Find itself retries for half a second.
		err := goleak.Find()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
