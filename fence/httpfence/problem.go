package httpfence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/leasefence/leasefence/fence/internal/wire"
)

// The types of the problems (RFC 9457) that [Error] writes and [ReadError] recognises. Each is the URL of its
// description.
const (
	// TypeStale is a token that is older than a mark of its resource: status 412. Its members, all strings, are "resource",
	// "token" and "highest", both in decimal, and "read" or "byReader", each "true", if the token or the mark is that of a
	// reader. A member that is not known is not there. Numbers are strings because decoders that read JSON numbers as
	// float64 round above 2^53.
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

// kinds are the statuses, types and titles of the refusals.
var kinds = map[wire.Kind]struct {
	status      int
	kind, title string
}{
	wire.Stale:     {http.StatusPreconditionFailed, TypeStale, "Fencing token stale"},
	wire.OtherLock: {http.StatusConflict, TypeOtherLock, "Fencing token of another lock"},
	wire.Missing:   {http.StatusPreconditionRequired, TypeMissing, "Fencing token required"},
	wire.Invalid:   {http.StatusBadRequest, TypeInvalid, "Fencing token malformed"},
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
	refusal := wire.RefusalOf(err, ErrMissing, headers)
	k, ok := kinds[refusal.Kind]
	if ok {
		write(w, k.kind, k.title, k.status, refusal.Text, refusal.Members)
	}
	return ok
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
	write(w, "about:blank", http.StatusText(status), status, detail, nil)
}

// write writes a problem.
func write(w http.ResponseWriter, kind, title string, status int, detail string, members map[string]string) {
	problem := map[string]any{"type": kind, "title": title, "status": status}
	if detail != "" {
		problem["detail"] = detail
	}
	for name, value := range members {
		problem[name] = value
	}
	body, _ := json.Marshal(problem) // strings and an integer can always be encoded
	h := w.Header()
	for _, other := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified", "Cache-Control"} {
		h.Del(other)
	}
	h.Set("Content-Type", mediaType)
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
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
	if len(body) > maxProblem {
		return nil
	}
	// If the body is not a JSON object, there is no type. A member that is not a string is skipped.
	var problem map[string]any
	_ = json.Unmarshal(body, &problem)
	members := map[string]string{}
	for name, value := range problem {
		if text, ok := value.(string); ok {
			members[name] = text
		}
	}
	for kind, k := range kinds {
		if resp.StatusCode != k.status || members["type"] != k.kind {
			continue
		}
		err := kind.Err(members, ErrMissing)
		if kind == wire.Missing || kind == wire.Invalid {
			err = fmt.Errorf("%w: refused with status %d", err, k.status)
		}
		return err
	}
	return nil
}

// replay is a body whose first part was read and can be read again.
type replay struct {
	io.Reader
	io.Closer
}
