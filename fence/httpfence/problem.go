package httpfence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/leasefence/leasefence/fence"
)

// The types of the problems (RFC 9457) that [Error] writes and [ReadError] knows. Each is the address of its own
// description.
const (
	// TypeStale is a token that is older than the newest its resource has seen: status 412. Of its members
	// "resource", "token" and "highest" all but the first are strings in decimal, since decoders that read JSON's
	// numbers as float64 round those above 2^53.
	TypeStale = "https://pkg.go.dev/github.com/leasefence/leasefence/fence/httpfence#TypeStale"
	// TypeMissing is a request that needs a token and has none: status 428.
	TypeMissing = "https://pkg.go.dev/github.com/leasefence/leasefence/fence/httpfence#TypeMissing"
	// TypeInvalid is a token that is malformed, or more than one: status 400.
	TypeInvalid = "https://pkg.go.dev/github.com/leasefence/leasefence/fence/httpfence#TypeInvalid"
)

const (
	mediaType = "application/problem+json"
	// maxProblem bounds what ReadError reads. A problem has about 300 bytes and its resource, twice.
	maxProblem = 64 << 10
)

type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail,omitempty"`
	Resource string `json:"resource,omitempty"`
	Token    string `json:"token,omitempty"`
	Highest  string `json:"highest,omitempty"`
}

// Error answers a request whose token was refused, by whatever the handler called, and reports whether it did. It
// writes a problem: 412 [TypeStale] if err matches [fence.ErrStale], 428 [TypeMissing] if it matches [ErrMissing],
// 400 [TypeInvalid] if it matches [fence.ErrInvalidToken]. For any other error, and for nil, it writes nothing and
// returns false.
//
// The client is told the resource, the token and the mark, as far as the [fence.StaleError] has them, and nothing
// of the errors around it. Call it before anything else is written. As [http.Error] does, it removes the headers
// that belong to another body.
func Error(w http.ResponseWriter, err error) bool {
	var p problem
	switch {
	case errors.Is(err, fence.ErrStale):
		p = staleProblem(err)
	case errors.Is(err, ErrMissing):
		p = problem{
			Type: TypeMissing, Title: "Fencing token required", Status: http.StatusPreconditionRequired,
			Detail: "The request needs the header " + Header + ".",
		}
	case errors.Is(err, fence.ErrInvalidToken):
		p = problem{
			Type: TypeInvalid, Title: "Fencing token malformed", Status: http.StatusBadRequest,
			Detail: "The header " + Header + " must hold one token, in decimal, without sign, space or leading zero.",
		}
	default:
		return false
	}
	p.write(w)
	return true
}

func staleProblem(err error) problem {
	p := problem{Type: TypeStale, Title: "Fencing token stale", Status: http.StatusPreconditionFailed}
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || stale == nil {
		return p
	}
	p.Detail = stale.Error()
	p.Resource, p.Token = stale.Resource, stale.Token.String()
	if stale.Highest != 0 {
		p.Highest = stale.Highest.String()
	}
	return p
}

// refuse is the default of Options.Refuse.
func refuse(w http.ResponseWriter, _ *http.Request, err error) {
	if Error(w, err) {
		return
	}
	status := http.StatusServiceUnavailable
	if errors.Is(err, errNoResource) {
		status = http.StatusInternalServerError
	}
	if errors.Is(err, errBody) {
		status = http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			status = http.StatusRequestEntityTooLarge
		}
	}
	p := problem{Type: "about:blank", Title: http.StatusText(status), Status: status}
	p.write(w)
}

func (p problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil { // strings and an integer always have a form
		http.Error(w, p.Title, p.Status)
		return
	}
	h := w.Header()
	for _, other := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified", "Cache-Control"} {
		h.Del(other)
	}
	h.Set("Content-Type", mediaType)
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // an error says that the reader has gone
}

// ReadError returns the refusal that a response stands for: a [*fence.StaleError] for 412 [TypeStale], an error that
// matches [ErrMissing] for 428 [TypeMissing], one that matches [fence.ErrInvalidToken] for 400 [TypeInvalid].
//
// For any other response, another 412 and nil among them, it returns nil. It knows a refusal by status, content type
// and problem type; members of a stale token's problem that are missing or malformed are left zero in the error, for
// a holder that has been refused must stop all the same. If the body of what may be a refusal cannot be read, the
// error says so and matches none of the three.
//
// The body can be read from its beginning afterwards, and the caller closes it as ever. ReadError reads at most 64 KiB
// of it; a longer one is no refusal.
func ReadError(resp *http.Response) error {
	if resp == nil || resp.Body == nil {
		return nil
	}
	switch resp.StatusCode {
	case http.StatusPreconditionFailed, http.StatusPreconditionRequired, http.StatusBadRequest:
	default:
		return nil
	}
	// A malformed parameter does not make it another type, and another type is "" or itself.
	if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != mediaType {
		return nil
	}
	original := resp.Body
	body, err := io.ReadAll(io.LimitReader(original, maxProblem+1))
	resp.Body = replay{io.MultiReader(bytes.NewReader(body), original), original}
	if err != nil {
		return fmt.Errorf("httpfence: read a problem of status %d: %w", resp.StatusCode, err)
	}
	return parseProblem(resp.StatusCode, body)
}

func parseProblem(status int, body []byte) error {
	if len(body) > maxProblem {
		return nil
	}
	// What is not JSON, or no object, leaves the type empty. A member that is no string is left out, and hides no other.
	var p problem
	_ = json.Unmarshal(body, &p)
	switch {
	case status == http.StatusPreconditionFailed && p.Type == TypeStale:
		return &fence.StaleError{Resource: p.Resource, Token: member(p.Token), Highest: member(p.Highest)}
	case status == http.StatusPreconditionRequired && p.Type == TypeMissing:
		return fmt.Errorf("%w: refused with status %d", ErrMissing, status)
	case status == http.StatusBadRequest && p.Type == TypeInvalid:
		return fmt.Errorf("%w: refused with status %d", fence.ErrInvalidToken, status)
	}
	return nil
}

func member(text string) fence.Token {
	t, err := fence.Parse(text)
	if err != nil {
		return 0
	}
	return t
}

// replay is a body of which some has been read, and can be read again.
type replay struct {
	io.Reader
	io.Closer
}
