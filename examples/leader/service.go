package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

const (
	period         = 300 * time.Millisecond // pause between two steps of work
	stepTimeout    = 10 * time.Second       // bound of one step
	explainTimeout = 3 * time.Second        // bound of the question why a token was refused
	stopTimeout    = stepTimeout + explainTimeout + 2*time.Second
)

// service is one process of the service.
type service struct {
	id, election string
	address      string // to serve HTTP at
	ttl          time.Duration
	era          uint
	client       *clientv3.Client
	book         *ledger.Client

	health  *election.Health
	seen    atomic.Pointer[election.Leader]     // the leader that this process has seen last; nil at first
	leading atomic.Pointer[election.Leadership] // nil unless this process leads
}

// run is the life of a process: it campaigns, leads when its turn comes, campaigns again when it has lost the lead, and
// serves HTTP, until ctx ends or one of these fails.
func (s *service) run(ctx context.Context) (err error) {
	opts := lease.Options{TTL: s.ttl, Owner: s.id, Era: uint16(s.era)} //nolint:gosec // runService has checked it
	session, err := lease.NewSession(ctx, s.client, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close(context.WithoutCancel(ctx))) }()

	// Health fails when renewals are overdue or a former leader hangs; it never fails for a process that only waits.
	s.health, err = election.NewHealth(session.Status().TTL / 3)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return err
	}
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return s.serve(ctx, listener) })
	parts.Go(func() error { return s.observe(ctx) })
	parts.Go(func() error { return s.campaign(ctx, session) })
	slog.Info("campaigns", "http", listener.Addr())
	return parts.Wait()
}

// observe keeps seen up to date.
func (s *service) observe(ctx context.Context) error {
	for leader, err := range election.Observe(ctx, s.client, s.election) {
		if err != nil {
			return fmt.Errorf("observe the election: %w", err)
		}
		s.seen.Store(&leader)
	}
	return context.Cause(ctx)
}

func (s *service) campaign(ctx context.Context, session *lease.Session) error {
	return election.Run(ctx, session, s.election, election.Options{
		Value:  s.id, // shown by GET /leader; it could also be an address for clients
		Health: s.health,
	}, s.lead,
		election.WithRejoin(), // after a transfer this process waits for its next turn
		election.WithOnLost(func(err error) { slog.Warn("has lost the lead", "err", err) }),
		// A leader that does not stop keeps the others from leading, since its lease is still renewed: end the process.
		election.WithStopTimeout(stopTimeout, func(err error) {
			slog.Error("ends at once", "err", err)
			os.Exit(1)
		}))
}

// lead does the leader's work until ctx ends. The next leader does not start before lead has returned, unless this
// process is paused or cut off; the token is for that case.
func (s *service) lead(ctx context.Context, token fence.Token) error {
	leadership, ok := election.FromContext(ctx)
	if !ok {
		return errors.New("the context has no leadership")
	}
	s.leading.Store(leadership)
	defer s.leading.Store(nil)
	slog.Info("leads", "token", token)
	err := s.work(ctx, leadership)
	slog.Info("leads no more", "token", token, "why", errors.Join(context.Cause(ctx), err))
	if errors.Is(err, fence.ErrStale) {
		// If the token is stale because a restore took etcd's revisions back, every later one would be, too: the error
		// ends the process. Otherwise somebody else leads by now: campaign again.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout)
		defer cancel()
		if err = leadership.Explain(ctx, err); !errors.Is(err, lease.ErrRestored) {
			return nil
		}
	}
	return err
}

// work writes to the ledger. The context carries the token of this leadership.
func (s *service) work(ctx context.Context, leadership *election.Leadership) error {
	// Claim before the first read: from now on the ledger refuses older tokens, so the entry that is read stays the
	// last until the write.
	if err := s.book.Claim(ctx); err != nil {
		return fmt.Errorf("claim the ledger: %w", err)
	}
	next := time.NewTicker(period)
	defer next.Stop()
	for leadership.Err() == nil { // Err reads the clock, so it is right even if the process has just been paused
		if err := s.step(ctx); err != nil {
			return err
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// step is one piece of work: read, compute, write. The end of the leadership does not cancel it: that could not take
// back a write that is already sent, and would leave its outcome unknown. The token makes a late write harmless.
func (s *service) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	last, err := s.book.Last(ctx)
	if err != nil {
		return err
	}
	// If the process is paused here, the write is late. Nothing on this side can prevent that.
	return s.book.Append(ctx, last.Next(1, s.id))
}

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
