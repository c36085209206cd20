package main

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

//go:embed ui
var uiFiles embed.FS

const (
	mostStreams = 256                   // streams at a time
	beat        = 5 * time.Second       // the longest silence of a stream; the page takes a much longer one for a broken connection
	slowest     = 30 * time.Second      // a write to a browser that does not read fails after this time
	pace        = 50 * time.Millisecond // the least time between two messages of a stream
)

// uiServer serves the page and its API.
type uiServer struct {
	hub     *hub
	local   bool
	token   string        // empty: the page needs no token
	streams chan struct{} // semaphore of mostStreams
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// handler serves all paths, behind the checks that every request has to pass.
func (s *uiServer) handler() http.Handler {
	mux := http.NewServeMux()
	files, _ := fs.Sub(uiFiles, "ui") // the folder is embedded
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /api/stream", s.permitted(s.stream))
	mux.HandleFunc("POST /api/release", s.permitted(s.release))
	inner := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, line := range [][2]string{
			{"Content-Security-Policy", policy},
			{"X-Content-Type-Options", "nosniff"},
			{"X-Frame-Options", "DENY"},
			{"Referrer-Policy", "no-referrer"},
			{"Cache-Control", "no-store"},
			{"Cross-Origin-Opener-Policy", "same-origin"},
			{"Cross-Origin-Resource-Policy", "same-origin"},
		} {
			w.Header().Set(line[0], line[1])
		}
		if s.local && !localHost(r.Host) { // DNS rebinding: a foreign name that resolves to this computer
			http.Error(w, "this page is served to localhost only", http.StatusForbidden)
			return
		}
		inner.ServeHTTP(w, r)
	})
}

// localHost reports whether a Host header names this computer. Any port will do: it may be that of a tunnel.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// permitted passes only requests of this page's script, with the token if the page needs one.
func (s *uiServer) permitted(next http.HandlerFunc) http.HandlerFunc {
	want := sha256.Sum256([]byte("Bearer " + s.token))
	return func(w http.ResponseWriter, r *http.Request) {
		given := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		switch {
		case r.Header.Get("X-Leasefence") == "": // a page of another site cannot set this header
			http.Error(w, "the header X-Leasefence is missing", http.StatusForbidden)
		case s.token != "" && subtle.ConstantTimeCompare(want[:], given[:]) != 1:
			http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
		default:
			next(w, r)
		}
	}
}

// message is a line of a stream. The list is left out if it was sent before.
type message struct {
	Now   int64     `json:"now"` // this computer's clock, in milliseconds, as all times
	Setup *setup    `json:"setup,omitempty"`
	List  *listView `json:"list,omitempty"`
	Name  *nameView `json:"name,omitempty"`
}

type setup struct {
	Etcd   []string `json:"etcd"`
	Prefix string   `json:"prefix"`
	Write  bool     `json:"write"`
}

// stream sends the list and the chosen name, and then their changes, until the browser leaves.
func (s *uiServer) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		http.Error(w, fmt.Sprintf("%d pages are open already", mostStreams), http.StatusServiceUnavailable)
		return
	}
	asked := r.URL.Query()
	defer s.hub.viewList()()
	var t *topic
	if name := asked.Get("name"); name != "" {
		var leave func()
		var err error
		if t, leave, err = s.hub.look(name); err != nil { // a topic outlives its viewers
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer leave()
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy would hold messages back
	out := http.NewResponseController(w)
	about := &setup{s.hub.app.etcd.endpoints, s.hub.prefix, s.hub.write}
	var listed news
	heart := time.NewTicker(beat)
	defer heart.Stop()
	for r.Context().Err() == nil {
		news := message{Now: time.Now().UnixMilli(), Setup: about}
		news.List, listed = s.hub.list(asked.Get("prefix"), asked.Get("contended") != "", listed)
		name, named := t.view()
		news.Name = name
		_ = out.SetWriteDeadline(time.Now().Add(slowest))
		if json.NewEncoder(w).Encode(news) != nil || out.Flush() != nil {
			return
		}
		about = nil
		select {
		case <-listed:
		case <-named:
		case <-heart.C:
		case <-r.Context().Done():
		}
		time.Sleep(pace) // changes in this time share a message
	}
}

// order is the page's request to release a holder.
type order struct {
	Name  string      `json:"name"`
	Typed string      `json:"typed"` // the name as the user has typed it
	Mode  string      `json:"mode"`
	Token fence.Token `json:"token"` // of the holder that the page has shown
}

func (s *uiServer) release(w http.ResponseWriter, r *http.Request) {
	var o order
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<10))
	in.DisallowUnknownFields()
	if !s.hub.write {
		http.Error(w, "the page is read only: start it with --write", http.StatusForbidden)
		return
	}
	if err := in.Decode(&o); err != nil {
		http.Error(w, "bad request: "+err.Error(), http.StatusBadRequest)
		return
	}
	mode, known := releaseModes[o.Mode]
	switch {
	case !known:
		http.Error(w, fmt.Sprintf("mode is %q, want ask, wait or now", o.Mode), http.StatusBadRequest)
		return
	case o.Token.Revision() <= 0:
		http.Error(w, "token is missing: want that of the holder that the page has shown", http.StatusBadRequest)
		return
	case o.Typed != o.Name || !strings.HasPrefix(o.Name, s.hub.prefix):
		http.Error(w, "that is not the name: nothing was released", http.StatusBadRequest)
		return
	}
	ctx, cancel := r.Context(), func() {}
	if mode.mode != lease.ReleaseWait { // that waits until the browser gives up
		ctx, cancel = s.hub.app.bounded(ctx)
	}
	defer cancel()
	err := lease.Release(ctx, s.hub.client, o.Name, lease.ReleaseOptions{Mode: mode.mode, Revision: o.Token.Revision()})
	// In the background: it blocks while nobody reads standard error.
	go s.hub.app.say("ui: release of %s, mode %s, token %s, for %s: %v", harmless(o.Name), o.Mode, o.Token, r.RemoteAddr, cmp.Or(err, errors.New("done")))
	switch {
	case errors.Is(err, lease.ErrNotHeld):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, notReleased(err).Error(), http.StatusBadGateway)
	default:
		s.hub.released(o.Name, o.Token.Revision(), mode.note)
		w.WriteHeader(http.StatusNoContent)
	}
}
