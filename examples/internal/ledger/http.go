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
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// tokenHeader carries the token, in decimal.
const tokenHeader = "Fencing-Token"

// maxBody bounds what is read of a request or an answer; an entry has about 60 bytes.
const maxBody = 1 << 10

// Handler serves the ledger: POST /claim, POST /entries and GET /entries/last.
func (l *Ledger) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /claim", withToken(func(_ *http.Request, token fence.Token) error { return l.Claim(token) }))
	mux.HandleFunc("POST /entries", withToken(func(r *http.Request, token fence.Token) error {
		var e Entry
		if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&e); err != nil {
			return err
		}
		return l.Append(token, e)
	}))
	mux.HandleFunc("GET /entries/last", func(w http.ResponseWriter, _ *http.Request) {
		// The error says that the reader has gone.
		_ = json.NewEncoder(w).Encode(l.Last())
	})
	return mux
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

// withToken answers 428 to a request without a token, 400 to one that is malformed, 412 if the token is stale.
func withToken(handle func(*http.Request, fence.Token) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		header := r.Header.Get(tokenHeader)
		if header == "" {
			http.Error(w, "no "+tokenHeader, http.StatusPreconditionRequired)
			return
		}
		token, err := fence.Parse(header)
		if err == nil {
			err = handle(r, token)
		}
		switch {
		case errors.Is(err, fence.ErrStale):
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
}

// Client is a writer's view of the ledger.
type Client struct{ URL string }

// Claim is [Ledger.Claim]. The error matches [fence.ErrStale] if the token is stale.
func (c Client) Claim(ctx context.Context, token fence.Token) error {
	return c.post(ctx, "/claim", token, nil)
}

// Append is [Ledger.Append]. The error matches [fence.ErrStale] if the token is stale.
func (c Client) Append(ctx context.Context, token fence.Token, e Entry) error {
	return c.post(ctx, "/entries", token, e)
}

// Last is [Ledger.Last].
func (c Client) Last(ctx context.Context) (e Entry, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/entries/last", nil)
	if err != nil {
		return Entry{}, err
	}
	body, err := c.do(r)
	if err != nil {
		return Entry{}, err
	}
	return e, json.Unmarshal(body, &e)
}

func (c Client) post(ctx context.Context, path string, token fence.Token, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set(tokenHeader, token.String())
	_, err = c.do(r)
	return err
}

// do sends a request. The error matches [fence.ErrStale] if the ledger answers 412.
func (c Client) do(r *http.Request) ([]byte, error) {
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusPreconditionFailed:
		return nil, staleError(resp.Status)
	}
	return nil, fmt.Errorf("%s: %s: %s", r.URL, resp.Status, strings.TrimSpace(string(body)))
}

// staleError is the ledger's 412.
type staleError string

func (e staleError) Error() string        { return string(e) }
func (e staleError) Is(target error) bool { return target == fence.ErrStale }
