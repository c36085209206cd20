//go:build unix

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/examples/internal/stage"
	"github.com/leasefence/leasefence/examples/internal/timeline"
)

// promptness is how soon a process that is not stopped answers.
const promptness = time.Second

// request asks a process something, and returns the status and the body.
func (s *show) request(ctx context.Context, p *stage.Process, within time.Duration, method, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, p.URL+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return "", err
	}
	answer := fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(body)))
	s.TL.Add(p.Actor, 0, timeline.Plain, fmt.Sprintf("%s %s: %s", method, path, answer))
	return answer, nil
}

// agree asks all processes who leads, once their own view has had time to follow, and the leader how it is.
func (s *show) agree(ctx context.Context, id string) error {
	for _, p := range s.inOrder() {
		if err := s.follows(ctx, p, id); err != nil {
			return err
		}
		answer, err := s.request(ctx, p, promptness, http.MethodGet, "/leader")
		if err != nil {
			return err
		}
		if !strings.HasPrefix(answer, `200 {"leader":"`+id+`","token":"`) {
			return fmt.Errorf("%s says %s, want %s as leader", p.ID, answer, id)
		}
	}
	answer, err := s.request(ctx, s.Nodes[id], promptness, http.MethodGet, "/healthz")
	if err == nil && answer != "200 ok" {
		err = fmt.Errorf("%s is not healthy: %s", id, answer)
	}
	return err
}

// follows waits until a process has seen the leader, without showing each look.
func (s *show) follows(ctx context.Context, p *stage.Process, id string) error {
	return s.Until(ctx, fmt.Sprintf("%s sees that %s leads", p.ID, id), func(ctx context.Context) (bool, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/leader", nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close() //nolint:errcheck // It was read, or is of no interest.
		var answer struct{ Leader string }
		switch resp.StatusCode {
		case http.StatusOK:
			err = json.NewDecoder(resp.Body).Decode(&answer)
		case http.StatusServiceUnavailable: // it has not heard of any yet
		default:
			err = errors.New(resp.Status)
		}
		return answer.Leader == id, err
	})
}

// queued waits until the processes stand in the election in this order, the leader first.
func (s *show) queued(ctx context.Context, ids ...string) error {
	return s.Until(ctx, fmt.Sprintf("the queue is %v", ids), func(ctx context.Context) (bool, error) {
		all, err := election.Candidates(ctx, s.Client, electionName)
		var values []string
		for _, c := range all {
			values = append(values, c.Value)
		}
		return slices.Equal(values, ids), err
	})
}

// inOrder is the processes by name.
func (s *show) inOrder() []*stage.Process {
	all := make([]*stage.Process, 0, len(s.Nodes))
	for _, p := range s.Nodes {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *stage.Process) int { return strings.Compare(a.ID, b.ID) })
	return all
}
