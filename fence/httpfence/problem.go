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
	"github.com/leasefence/leasefence/fence/internal/wire"
)

// The types of the problems (RFC 9457) that [Error] writes and [ReadError] recognises. Each is the URL of its
// description.
const (
	// TypeStale is a token that is older than a mark of its resource: status 412. Its members are "resource", "token"
	// and "highest". The last two are decimal strings, because decoders that read JSON numbers as float64 round above
	// 2^53. With readers it also has "read" or "byReader", which are true if the token or the mark is that of a reader.
	TypeStale = "https://pkg.go.dev/github.com/leasefence/leasefence/fence/httpfence#TypeStale"
	// TypeOtherLock is a token that belongs to another lock than its resource follows: status 409. Its members are
	// "resource", "token", "read" as above, "lock", which is not there if the token came without the name of its lock,
	// and "follows".
	TypeOtherLock = "https://pkg.go.dev/github.com/leasefence/leasefence/fence/httpfence#TypeOtherLock"
	// TypeMissing is a request that writes and has no token: status 428.
	TypeMissing = "https://pkg.go.dev/github.com/leasefence/leasefence/fence/httpfence#TypeMissing"
	// TypeInvalid is a malformed token or more than one token, of a writer or a reader, or a malformed name of a lock,
	// more than one, or one without a token: status 400.
	TypeInvalid = "https://pkg.go.dev/github.com/leasefence/leasefence/fence/httpfence#TypeInvalid"
)

const (
	mediaType = "application/problem+json"
	// maxProblem is the largest problem that ReadError reads. A problem has about 400 bytes and twice the names of the
	// resource and of two locks, whose bytes can each take six.
	maxProblem = 128 << 10
)

type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail,omitempty"`
	Resource string `json:"resource,omitempty"`
	Token    string `json:"token,omitempty"`
	Highest  string `json:"highest,omitempty"`
	Read     bool   `json:"read,omitempty"`
	ByReader bool   `json:"byReader,omitempty"`
	Lock     string `json:"lock,omitempty"`
	Follows  string `json:"follows,omitempty"`
}

// Error writes the response for an error that is the refusal of a token, and reports whether it did. The response is a
// problem: 412 [TypeStale] if err matches [fence.ErrStale], 409 [TypeOtherLock] if it matches [fence.ErrOtherLock], 428
// [TypeMissing] if it matches [ErrMissing], 400 [TypeInvalid] if it matches [fence.ErrInvalidToken]. For any other
// error and for nil, Error writes nothing and returns false.
//
// The response has the resource (the first 4 KiB of a longer name), the token and the mark of the [fence.StaleError],
// or the two locks of the [fence.OtherLockError] (the first [fence.MaxLock] bytes of longer names), and nothing of the
// errors that wrap it. Call Error before anything else is written. Like [http.Error] it removes headers that describe
// another body.
func Error(w http.ResponseWriter, err error) bool {
	var p problem
	switch {
	case errors.Is(err, fence.ErrStale):
		p = staleProblem(err)
	case errors.Is(err, fence.ErrOtherLock):
		p = otherLockProblem(err)
	case errors.Is(err, ErrMissing):
		p = problem{
			Type: TypeMissing, Title: "Fencing token required", Status: http.StatusPreconditionRequired,
			Detail: "The request needs the header " + Header + ".",
		}
	case errors.Is(err, fence.ErrInvalidToken):
		p = problem{
			Type: TypeInvalid, Title: "Fencing token malformed", Status: http.StatusBadRequest,
			Detail: "The request must have one token, in the header " + Header + " or " + ReadHeader +
				", in decimal, without sign, space or leading zero, and at most one name of its lock, in " + LockHeader + ", percent-encoded.",
		}
	default:
		return false
	}
	p.write(w)
	return true
}

func staleProblem(err error) problem {
	p := problem{Type: TypeStale, Title: "Fencing token stale", Status: http.StatusPreconditionFailed}
	known, ok := wire.Stale(err)
	if !ok {
		return p
	}
	p.Detail = known.Error()
	p.Resource, p.Token = known.Resource, known.Token.String()
	p.Read, p.ByReader = known.Read, known.ByReader
	if known.Highest != 0 {
		p.Highest = known.Highest.String()
	}
	return p
}

func otherLockProblem(err error) problem {
	p := problem{Type: TypeOtherLock, Title: "Fencing token of another lock", Status: http.StatusConflict}
	known, ok := wire.OtherLock(err)
	if !ok {
		return p
	}
	p.Detail = known.Error()
	p.Resource, p.Token, p.Read = known.Resource, known.Token.String(), known.Read
	p.Lock, p.Follows = known.Lock, known.Follows
	return p
}

// refuse is the default of Options.Refuse.
func refuse(w http.ResponseWriter, _ *http.Request, err error) {
	if Error(w, err) {
		return
	}
	var detail string
	status := http.StatusServiceUnavailable
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case errors.Is(err, errNoResource):
		status = http.StatusInternalServerError
	case errors.Is(err, errTimeoutHandler):
		status, detail = http.StatusInternalServerError, err.Error() // tells the server's developer what to change
	case errors.Is(err, errLongResource):
		status, detail = http.StatusBadRequest, err.Error()
	case errors.Is(err, errBody) && large:
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, errBody):
		status = http.StatusBadRequest
	}
	p := problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
	p.write(w)
}

func (p problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil { // strings and an integer can always be encoded
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
	_, _ = w.Write(append(body, '\n')) // an error means that the client has gone
}

// ReadError returns the refusal that a response contains: a [*fence.StaleError] for 412 [TypeStale], a
// [*fence.OtherLockError] for 409 [TypeOtherLock], an error that matches [ErrMissing] for 428 [TypeMissing], one that
// matches [fence.ErrInvalidToken] for 400 [TypeInvalid].
//
// For nil and for any other response, for example another 412, it returns nil. It recognises a refusal by status,
// content type and problem type. Missing or malformed members of a token's problem are zero in the error, since a
// refused holder must stop in any case. If the body of a possible refusal cannot be read, the error wraps the read
// error and matches none of the four.
//
// Afterwards the body can be read from its beginning, and the caller closes it as usual. ReadError reads at most 128
// KiB. A longer body is not a refusal.
func ReadError(resp *http.Response) error {
	if resp == nil || resp.Body == nil {
		return nil
	}
	switch resp.StatusCode {
	case http.StatusPreconditionFailed, http.StatusConflict, http.StatusPreconditionRequired, http.StatusBadRequest:
	default:
		return nil
	}
	// A malformed parameter does not change the media type.
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
	// If the body is not a JSON object, the type stays empty. A member of another type is skipped.
	var p problem
	_ = json.Unmarshal(body, &p)
	switch {
	case status == http.StatusPreconditionFailed && p.Type == TypeStale:
		return &fence.StaleError{
			Resource: p.Resource, Token: wire.Member(p.Token), Highest: wire.Member(p.Highest), Read: p.Read, ByReader: p.ByReader,
		}
	case status == http.StatusConflict && p.Type == TypeOtherLock:
		return &fence.OtherLockError{
			Resource: p.Resource, Token: wire.Member(p.Token), Read: p.Read, Lock: p.Lock, Follows: p.Follows,
		}
	case status == http.StatusPreconditionRequired && p.Type == TypeMissing:
		return fmt.Errorf("%w: refused with status %d", ErrMissing, status)
	case status == http.StatusBadRequest && p.Type == TypeInvalid:
		return fmt.Errorf("%w: refused with status %d", fence.ErrInvalidToken, status)
	}
	return nil
}

// replay is a body whose first part was read and can be read again.
type replay struct {
	io.Reader
	io.Closer
}
