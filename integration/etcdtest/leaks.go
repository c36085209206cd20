package etcdtest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// peerGrace is how long connections between members may outlive the members. A member waits for the end of a request in
// net/http's abortPendingRead, which moves the connection's read deadline to the past to end the read that is under way.
// etcd's timeoutConn sets the deadline anew at each read, so that may come too late, and the read then lasts until
// rafthttp's ConnReadTimeout of 5 s. The connection's other end waits as long.
const peerGrace = 7 * time.Second

// peerGoroutines are those that peerGrace is for. A server without peers leaves none.
var peerGoroutines = []goleak.Option{
	goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
	goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
}

// Main runs a package's tests and fails them if a goroutine is left at the end. It does not return. Call it from
// TestMain. No goroutine is exempt: etcd leaves none behind for good.
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

// findLeaks returns an error that lists the goroutines that are left. Those of peers get time to end.
func findLeaks() error {
	if err := goleak.Find(peerGoroutines...); err != nil {
		return err
	}
	deadline := time.Now().Add(peerGrace)
	for {
		// Find itself tries for half a second.
		err := goleak.Find()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
