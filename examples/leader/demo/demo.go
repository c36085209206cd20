//go:build unix

// Package demo shows what a service of three processes does when its leaders die, hang, hand over and stop. It starts
// the processes as an operator would: this program with -join. It uses only their logs, their HTTP and signals. The
// processes have no code for the demo.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/examples/internal/stage"
)

const (
	electionName = "demo/leader"
	// limit bounds the run, which takes about ten seconds.
	limit = 60 * time.Second
	// silence is how long the demo waits for a stopped process to answer.
	silence = stage.Patience / 20
)

// show is the demo.
type show struct {
	*stage.Stage
	door door
}

// Run starts everything, plays the scenes and prints a summary. On return nothing is left running. The error says what
// did not happen as it should.
func Run(ctx context.Context, noFence bool, out *os.File) error {
	s := &show{door: door{stands: make(chan struct{}, 1)}}
	opts := stage.Options{Name: "leader", NoFence: noFence, Limit: limit, Before: s.door.before}
	return stage.Run(ctx, opts, out, func(on *stage.Stage) { //nolint:contextcheck // the stage has the context
		s.Stage = on
		s.play()
	})
}

// door delays reads of the ledger while it is locked, like a slow network. So the demo can pause the leader in the
// middle of a step, after it has sent its read.
type door struct {
	sync.RWMutex
	stands chan struct{} // filled when a reader waits at the locked door
}

func (d *door) before(ledger http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			if !d.TryRLock() {
				d.stands <- struct{}{}
				d.RLock()
			}
			d.RUnlock()
		}
		ledger.ServeHTTP(w, r)
	})
}

// start starts a process and waits until it campaigns.
func (s *show) start(id string) {
	e := s.Start(id, "campaigns", "-join", "-json", "-id", id, "-name", electionName, "-http", "127.0.0.1:0",
		"-endpoints", s.Endpoint(), "-ledger", s.Ledger, "-ttl", stage.TTL.String())
	s.Step(id, "address of", func(_ context.Context, p *stage.Process) error {
		address, ok := e.More["http"].(string)
		if !ok {
			return errors.New("its log has no address of its HTTP server")
		}
		p.URL = "http://" + address
		return nil
	})
}

// settle waits for the end of a scene: the leader has written, all processes are in the queue and know the leader.
func (s *show) settle(leader string, queue ...string) {
	s.Wrote(s.LastOf(leader, stage.Leads))
	s.queued(queue...)
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		s.expect(id, "GET /leader", `200 {"leader":"`+leader+`","token":"`)
	}
	s.expect(leader, "GET /healthz", "200 ok")
}

// queued waits until the processes stand in the election in this order, the leader first.
func (s *show) queued(ids ...string) {
	s.Until(fmt.Sprintf("the queue is %v", ids), func(ctx context.Context) (bool, error) {
		all, err := election.Candidates(ctx, s.Client, electionName)
		var values []string
		for _, c := range all {
			values = append(values, c.Value)
		}
		return slices.Equal(values, ids), err
	})
}

// expect asks a process until it answers as wanted: its view may lag behind for a moment.
func (s *show) expect(id, what, want string) {
	s.Until(fmt.Sprintf("%s answers %s with %s", id, what, want), func(ctx context.Context) (bool, error) {
		p := s.Nodes[id]
		answer, err := ask(ctx, p, what, stage.Patience)
		if err != nil || !strings.HasPrefix(answer, want) {
			return false, err
		}
		s.Tell(p, what+": "+answer)
		return true, nil
	})
}

// ask sends a process an HTTP request, and returns the status and the body.
func ask(ctx context.Context, p *stage.Process, what string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	method, path, _ := strings.Cut(what, " ")
	r, err := http.NewRequestWithContext(ctx, method, p.URL+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(body))), errors.Join(err, resp.Body.Close())
}
