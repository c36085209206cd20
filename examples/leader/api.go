package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// patience bounds a request's work, and the end of the server.
const patience = 5 * time.Second

// serve starts to serve HTTP until ctx ends, and returns the address. It checks no permission: everybody who can reach
// the address can transfer the lead.
func (n *node) serve(ctx context.Context, parts *sync.WaitGroup, fail func(error)) (address string, err error) {
	listener, err := net.Listen("tcp", n.http)
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader", n.getLeader)
	mux.Handle("GET /healthz", n.health)
	mux.HandleFunc("POST /transfer", n.postTransfer)
	// A transfer may take all of patience, and the answer comes after it.
	server := &http.Server{Handler: mux, ReadTimeout: patience, WriteTimeout: 2 * patience}

	parts.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("serve HTTP: %w", err))
		}
	})
	parts.Go(func() {
		<-ctx.Done()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if err := server.Shutdown(bounded); err != nil {
			n.log.Warn("requests are cut off", "err", errors.Join(err, server.Close()))
		}
	})
	return listener.Addr().String(), nil
}

// leaderAnswer says who leads, as far as the answering process knows. It is for finding the leader. It must not decide
// who may write: the check of the token does.
type leaderAnswer struct {
	Leader string      `json:"leader"` // empty: nobody leads
	Token  fence.Token `json:"token,omitzero"`
	Me     bool        `json:"me"` // the answering process leads
}

func (n *node) getLeader(w http.ResponseWriter, _ *http.Request) {
	present := n.present.Load()
	if present == nil {
		http.Error(w, "not known yet", http.StatusServiceUnavailable)
		return
	}
	token, _ := fence.NewToken(n.era, present.Revision) // the zero token if nobody leads
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// An error means that the reader has gone.
	_ = json.NewEncoder(w).Encode(leaderAnswer{
		Leader: present.Value,
		Token:  token,
		Me:     !present.None() && present.Value == n.id,
	})
}

// postTransfer hands the lead over to the candidate that the parameter "to" names, for example before this process is
// updated.
func (n *node) postTransfer(w http.ResponseWriter, r *http.Request) {
	leadership := n.leading.Load()
	if leadership == nil {
		http.Error(w, "this process does not lead", http.StatusConflict)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	to := r.URL.Query().Get("to") // not from the body: reading that may block
	n.log.Info("is asked to transfer", "token", leadership.Token(), "to", to)
	err := leadership.Transfer(ctx, to)
	switch {
	case err == nil:
		_, _ = fmt.Fprintln(w, "ok") // an error means that the caller has gone
	case errors.Is(err, election.ErrNoCandidate):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, lease.ErrLost), errors.Is(err, election.ErrResigned), errors.Is(err, election.ErrBlocked):
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}
