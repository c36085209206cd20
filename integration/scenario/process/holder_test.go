//go:build unix

package process_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/child"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

func TestMain(m *testing.M) {
	child.Play(holderEnv, order.hold)
	etcdtest.Main(m)
}

// holderEnv is the environment variable that holds the order of a holder's process.
const holderEnv = "SCENARIO_HOLDER"

// order describes a holder. The holder takes the name, sends a report, and then reads commands from its standard input,
// one per line: "check" its handle, or "write". It answers each with a report, and ends at the end of its input.
type order struct {
	Etcd, Resource string
	Way, Name      string
	TTL            time.Duration
}

// report is a holder's answer.
type report struct {
	Token fence.Token
	Lease clientv3.LeaseID
	Err   string         // of the handle, or of the write
	Lost  lease.Reason   // 0 if the handle is not lost
	Wrote map[string]int // the status of each path's answer
}

func (o order) hold() error {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{o.Etcd}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	s, err := lease.NewSession(ctx, client, lease.Options{TTL: o.TTL})
	if err != nil {
		return err
	}
	w, err := newWriter(o.Resource)
	if err != nil {
		return err
	}
	var h *rig.Hold
	for _, way := range rig.Ways {
		if way.Name == o.Way {
			h, err = way.Take(ctx, s, o.Name)
		}
	}
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	r := report{Token: h.Token(), Lease: s.Status().LeaseID}
	for in := bufio.NewScanner(os.Stdin); ; {
		if err := out.Encode(r); err != nil {
			return err
		}
		if !in.Scan() {
			return in.Err()
		}
		r = report{Token: h.Token()}
		var err error
		switch in.Text() {
		case "check":
			if err = h.Err(); err != nil {
				if lost, ok := errors.AsType[*lease.LostError](err); ok {
					r.Lost = lost.Reason
				}
			}
		case "write":
			r.Wrote, err = w.write(ctx, h.Token())
		default:
			return fmt.Errorf("unknown command %q", in.Text())
		}
		if err != nil {
			r.Err = err.Error()
		}
	}
}

// holder is a process that holds a name.
type holder struct {
	report // the first one

	t       *testing.T
	run     *child.Process
	reports chan report
}

// startHolder starts a holder and waits until it holds the name. The test's cleanup kills it.
func startHolder(t *testing.T, o order) *holder {
	t.Helper()
	run, err := child.Start("", holderEnv, o)
	require.NoError(t, err)
	h := &holder{t: t, run: run, reports: make(chan report, 10)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(h.reports)
		for in := json.NewDecoder(run.Stdout); ; {
			var r report
			if in.Decode(&r) != nil {
				return
			}
			h.reports <- r
		}
	}()
	t.Cleanup(func() {
		h.kill()
		<-ended
		_ = run.Wait() // the error is the signal
	})
	h.report = h.next()
	return h
}

// ask sends a command to a holder, stopped or not.
func (h *holder) ask(what string) {
	h.t.Helper()
	_, err := io.WriteString(h.run.Stdin, what+"\n")
	require.NoError(h.t, err)
}

// next waits for a report.
func (h *holder) next() report {
	h.t.Helper()
	r := rig.Await(h.t, h.reports, "the holder sends no report")
	require.NotZero(h.t, r.Token, "the holder has ended")
	return r
}

func (h *holder) kill() {
	h.t.Helper()
	require.NoError(h.t, h.run.Kill())
}

// stop pauses the process.
func (h *holder) stop() {
	h.t.Helper()
	require.NoError(h.t, h.run.Pause(rig.Bounded(h.t)))
}

// resume continues the process.
func (h *holder) resume() {
	h.t.Helper()
	require.NoError(h.t, h.run.Resume())
}
