package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// ui has the argument and flags of "ui".
type ui struct {
	prefix    string
	listen    string
	tokenFile string
	audit     string
	every     time.Duration
	write     bool
}

func (a *app) uiCommand() *cobra.Command {
	var u ui
	cmd := &cobra.Command{
		Use:   "ui [PREFIX]",
		Short: "Serve a live page of locks, their holders and waiters",
		Long: `ui serves a page for a browser and prints its address. The page shows the names that begin with PREFIX, their holders and waiters,
and a timeline of the holds of one name. A signal ends ui.

  names     While somebody looks, ui lists the names every --every, once for all browsers, and pauses for at least ten times as
            long as the listing took. The page shows the first 200 names that begin with the text in the search field
  a name    ui watches the name that is open: a change shows within milliseconds. Every two seconds, every ten for 200 contenders,
            it checks that the watch shows the present state, and reads the remaining time of leases, unless there are more
            than 100 holders or waiters
  timeline  The last 200 holds since a browser first opened the name, by this computer's clock. ui forgets them ten minutes after
            the last browser has left. In etcd, an unlocked lock and a deleted key look the same
  --audit   A file with rows of an audit trail, as JSON, of 64 MiB at most. ui reads it again when it changes. The page adds why
            a resource's tenures have ended, and which tokens were refused: the last 200 of each in the file. A row belongs to
            a name by its token, or if its resource has that name

Only this computer can reach the page, unless --listen has another address. Then, and with --write, the page needs a token: that
of --token-file, or a random one, which is printed with the address. Page and token go over plain HTTP: for a network, use
"ssh -L", or put TLS in front. Whoever may see the page acts as this etcd user, on names that begin with PREFIX.

The page changes nothing, unless --write is given: then it releases holders as "release" does.`,
		Example: `  leasefence ui
  leasefence ui jobs/ --write
  leasefence ui --listen 10.0.0.7:7319 --token-file /run/secrets/page
  psql -Atc 'SELECT row_to_json(t) FROM fencing_token_log t' >trail.json
  psql -Atc 'SELECT row_to_json(t) FROM fencing_token_log_refused t' >>trail.json
  leasefence ui --audit trail.json`,
		Args: thenPrefix(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			u.prefix = prefixIn(args, 0)
			if u.every < 100*time.Millisecond {
				return usageError("--every is %v, want 100ms or more", u.every)
			}
			return a.use(func(client *clientv3.Client) error { return a.ui(cmd.Context(), client, u) })
		},
	}
	cmd.Flags().StringVar(&u.listen, "listen", "127.0.0.1:7319", "address of the page; port 0 picks a free port")
	cmd.Flags().StringVar(&u.tokenFile, "token-file", "", "file with the page's token, of 16 characters or more")
	cmd.Flags().StringVar(&u.audit, "audit", "", "file with rows of an audit trail, as JSON")
	cmd.Flags().DurationVar(&u.every, "every", 2*time.Second, "pause between two listings of the names")
	cmd.Flags().BoolVar(&u.write, "write", false, "let the page release holders")
	return cmd
}

func (a *app) ui(ctx context.Context, client *clientv3.Client, u ui) error {
	kept, err := newTrail(u.audit)
	if err != nil {
		return err
	}
	token, err := readToken(u.tokenFile)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", u.listen)
	if err != nil {
		return usageError("--listen: %w; 127.0.0.1:0 is any free port", err)
	}
	addr := listener.Addr().(*net.TCPAddr) // the address of a tcp listener
	url := "http://" + a.seen(addr) + "/"
	local := addr.IP.IsLoopback()
	if token == "" && (!local || u.write) {
		token = rand.Text()
		url += "#token=" + token
	}

	if kept != nil {
		go kept.follow(ctx)
	}
	h := a.newHub(ctx, client, u, kept)
	pages := &uiServer{hub: h, local: local, token: token, streams: make(chan struct{}, mostStreams)}
	server := &http.Server{
		Handler: pages.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
	}
	if err := a.print(map[string]string{"url": url}, url+"\n"); err != nil {
		return err
	}
	if !local {
		go a.say("other computers can reach this address, and HTTP is not encrypted: use ssh -L, or put TLS in front")
	}
	return server.Serve(listener) // until a signal ends the process: there is nothing to clean up
}

// seen is the listener's address as a browser can use it: the host's name instead of an unspecified address.
func (a *app) seen(addr *net.TCPAddr) string {
	if !addr.IP.IsUnspecified() {
		return addr.String()
	}
	host, _ := os.Hostname()
	return net.JoinHostPort(cmp.Or(host, "localhost"), fmt.Sprint(addr.Port))
}

// readToken reads the token in a file; it is empty if no file is given.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", usageError("--token-file: %w", err)
	}
	token := strings.TrimRight(string(text), "\r\n")
	if len(token) < 16 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", usageError("--token-file: %s has %d bytes, want 16 or more letters, digits and signs in one line", file, len(token))
	}
	return token, nil
}

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
