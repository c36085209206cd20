//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/examples/internal/stage"
)

// show is the demo. It starts three processes of the service as an operator would: this program with -join. It uses
// only their logs, their HTTP and signals. The processes have no code for the demo.
type show struct {
	*stage.Stage

	urls map[string]string // by the processes' names
}

func demo() error {
	return stage.Run(os.Stdout, false, func(s *stage.Stage) { (&show{s, map[string]string{}}).play() })
}

// play plays the scenes.
func (s *show) play() {
	s.Begin("Three processes start")
	for _, id := range []string{"A", "B", "C"} {
		s.start(id)
	}
	leader := s.settle()

	s.Begin("The leader dies: another process leads when the lease has expired")
	began, dead := time.Now(), leader
	s.Signal(dead, syscall.SIGKILL, "KILL")
	s.Await(dead, "has ended")
	delete(s.urls, dead)
	leader = s.settle()
	s.Say("main", "%s leads %v after %s was killed", leader, time.Since(began).Round(time.Millisecond), dead)
	s.start(dead)

	s.Begin("The leader is paused: another process leads when the lease has expired")
	began, paused := time.Now(), leader
	s.Pause(paused)
	url := s.urls[paused]
	delete(s.urls, paused) // it does not answer
	leader = s.settle()
	s.Say("main", "%s leads %v after %s was paused", leader, time.Since(began).Round(time.Millisecond), paused)
	s.Signal(paused, syscall.SIGCONT, "CONT")
	s.Await(paused, "has lost the lead")
	s.urls[paused] = url

	s.Begin("The leader hands over to a candidate of our choice")
	s.until(leader, "POST /transfer?to="+paused, "200 ok") // it may take a moment until that one campaigns again
	began = time.Now()
	next, _ := s.Await(paused, "leads token")
	s.settle()
	s.Say("main", "%s leads %v after %s was asked", next, time.Since(began).Round(time.Millisecond), leader)

	s.Begin("The leader is told to stop: it resigns, and another process leads at once")
	began = time.Now()
	s.Signal(next, syscall.SIGTERM, "TERM")
	delete(s.urls, next)
	leader = s.settle()
	s.Say("main", "%s leads %v after %s was told to stop", leader, time.Since(began).Round(time.Millisecond), next)
	s.Await(next, "has ended: exit status 0")

	s.Begin("All stop")
	for id := range s.urls {
		s.Signal(id, syscall.SIGTERM, "TERM")
		s.Await(id, "has ended: exit status 0")
	}
}

// start starts a process and waits until it campaigns.
func (s *show) start(id string) {
	s.Start(id, "-join", "-id", id, "-election", "demo/leader", "-http", "127.0.0.1:0", "-etcd", s.Etcd, "-ledger", s.Ledger,
		"-ttl", stage.TTL.String())
	_, at := s.Await(id, `campaigns http=(\S+)`)
	s.urls[id] = "http://" + at[0]
}

// settle waits until a process leads in this scene, it has written, and all processes know it. It returns its name.
func (s *show) settle() (leader string) {
	leader, token := s.Await("[ABC]", `leads token=(\d+)`)
	s.Await("ledger", "accepts "+leader+"'s .* with token "+token[0])
	for id := range s.urls {
		s.until(id, "GET /leader", `200 {"leader":"`+leader+`","token":"`+token[0]+`"}`)
	}
	s.until(leader, "GET /healthz", "200 ok")
	return leader
}

// until asks a process until it answers as wanted.
func (s *show) until(id, what, want string) {
	s.Do(id+" answers "+what, func() error {
		ctx, cancel := context.WithTimeout(s.Context, 4*patience)
		defer cancel()
		for {
			answer, err := ask(ctx, s.urls[id], what)
			if err != nil {
				return err
			}
			if answer == want {
				s.Say(id, "answers %s with %s", what, answer)
				return nil
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// ask sends a process an HTTP request, and returns the status and the body.
func ask(ctx context.Context, url, what string) (string, error) {
	method, path, _ := strings.Cut(what, " ")
	r, err := http.NewRequestWithContext(ctx, method, url+path, nil)
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
