package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
)

// patience bounds a request's work, and the end of the server.
const patience = 5 * time.Second

// serve serves HTTP until ctx ends. It checks no permission: everybody who can reach the address can transfer the lead.
func (s *service) serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader", s.getLeader)
	mux.Handle("GET /healthz", s.health)
	mux.HandleFunc("POST /transfer", s.postTransfer)
	// A transfer may take all of patience, and the answer comes after it.
	server := &http.Server{Handler: mux, ReadTimeout: patience, WriteTimeout: 2 * patience}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = server.Shutdown(bounded) // an error means that a request is cut off
	})
	err := server.Serve(listener)
	if !stop() {
		<-ended
		return context.Cause(ctx)
	}
	return fmt.Errorf("serve HTTP: %w", err)
}

// leaderAnswer says who leads, as far as the answering process knows. It is for finding the leader. It must not decide
// who may write: the check of the token does.
type leaderAnswer struct {
	Leader string      `json:"leader"` // empty: nobody leads
	Token  fence.Token `json:"token,omitzero"`
}

func (s *service) getLeader(w http.ResponseWriter, _ *http.Request) {
	seen := s.seen.Load()
	if seen == nil {
		http.Error(w, "not known yet", http.StatusServiceUnavailable)
		return
	}
	token, _ := fence.NewToken(uint16(s.era), seen.Revision) //nolint:gosec // runService has checked it; zero if nobody leads
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(leaderAnswer{seen.Value, token}) // an error means that the reader has gone
}

// postTransfer hands the lead over to the candidate that the parameter "to" names, for example before this process is
// updated.
func (s *service) postTransfer(w http.ResponseWriter, r *http.Request) {
	leadership := s.leading.Load()
	if leadership == nil {
		http.Error(w, "this process does not lead", http.StatusConflict)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	err := leadership.Transfer(ctx, r.URL.Query().Get("to"))
	switch {
	case err == nil:
		_, _ = fmt.Fprintln(w, "ok") // an error means that the caller has gone
	case errors.Is(err, election.ErrNoCandidate):
		http.Error(w, err.Error(), http.StatusNotFound)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}
