package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/leasefence/leasefence/fence/httpfence"
)

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

// Claim begins a tenure: from then on the ledger refuses older tokens. The error matches [fence.ErrStale] if the token
// is stale itself.
func (c *Client) Claim(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/claim", nil, nil)
}

// Append writes an entry. The error matches [fence.ErrStale] if the token is stale.
func (c *Client) Append(ctx context.Context, e Entry) error {
	return c.do(ctx, http.MethodPost, "/entries", e, nil)
}

// Last returns the newest entry, or the zero Entry if there is none.
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
