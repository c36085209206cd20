package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
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
