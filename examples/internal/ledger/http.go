package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/httpfence"
)

// maxBody is the most that is read of a request or an answer, in bytes; an entry has about 60, a refusal about 250.
const maxBody = 1 << 10

// Handler serves the ledger: POST /claim, POST /entries and GET /entries/last.
func (l *Ledger) Handler() (http.Handler, error) {
	// The middleware puts the token into the context, and refuses requests without one. It checks no mark: the database
	// decides.
	withToken, err := httpfence.NewMiddleware(
		func(*http.Request) string { return resource },
		func(context.Context, string, fence.Token) error { return nil },
		httpfence.Options{},
	)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /claim", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, l.Claim(r.Context()))
	})
	mux.HandleFunc("POST /entries", func(w http.ResponseWriter, r *http.Request) {
		var e Entry
		err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&e)
		if err == nil {
			err = l.Append(r.Context(), e)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("GET /entries/last", func(w http.ResponseWriter, r *http.Request) {
		last, err := l.Last(r.Context())
		answer(w, last, err)
	})
	return withToken(mux), nil
}

func answer(w http.ResponseWriter, value any, err error) {
	switch {
	case err == nil:
		_ = json.NewEncoder(w).Encode(value) // an error means that the reader has gone
	case !httpfence.Error(w, err): // for a refusal it answers 412, with the token and the mark
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// Serve serves a ledger on a free port of the loopback interface until stop is called.
func Serve(handler http.Handler) (url string, stop func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() error {
		err := server.Close()
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
		return err
	}, nil
}

// Client writes to a ledger over HTTP. Each request carries the token of its context.
type Client struct {
	url  string
	http http.Client
}

// NewClient returns a client of the ledger at a URL.
func NewClient(ledger string) (*Client, error) {
	u, err := url.Parse(ledger)
	if err != nil {
		return nil, err
	}
	transport, err := httpfence.NewTransport(nil, u.Host) // sends tokens to this host only
	if err != nil {
		return nil, err
	}
	return &Client{url: ledger, http: http.Client{Transport: transport}}, nil
}

// Claim is [Ledger.Claim]. The error matches [fence.ErrStale] if the token is stale.
func (c *Client) Claim(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/claim", nil, nil)
}

// Append is [Ledger.Append]. The error matches [fence.ErrStale] if the token is stale.
func (c *Client) Append(ctx context.Context, e Entry) error {
	return c.do(ctx, http.MethodPost, "/entries", e, nil)
}

// Last is [Ledger.Last].
func (c *Client) Last(ctx context.Context) (e Entry, err error) {
	err = c.do(ctx, http.MethodGet, "/entries/last", nil, &e)
	return e, err
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // nothing is lost: the body was only read
	if err := httpfence.ReadError(resp); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s: %s", r.URL, resp.Status, strings.TrimSpace(string(text)))
	case out == nil:
		return nil
	}
	return json.Unmarshal(text, out)
}
