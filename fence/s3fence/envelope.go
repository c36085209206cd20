package s3fence

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"regexp"
	"strings"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
	"github.com/leasefence/leasefence/fence/internal/wire"
)

const (
	magic = "leasefence-s3fence/1"
	noID  = "--------------------------"

	// headerLimit is above the longest line: each byte of a lock's name can take three.
	headerLimit = 3*fence.MaxLock + 256

	// maxPayload keeps an object within the 5 GiB that one PutObject can carry.
	maxPayload = 5<<30 - headerLimit
)

// state tells a written object from an object that was only claimed.
type state byte

const (
	claimed state = 'c' // the claim of a writer or a reader created the object; it has no payload
	written state = 'w'
)

// header is the line before the payload:
//
//	leasefence-s3fence/1 <id> <previous id> w 54 0 orders
//
// The marks and the name have the form of [admission.Marks], but the name is encoded as in an HTTP header: the line has no
// other line feed than its last byte. Without a name the line ends with a space.
type header struct {
	admission.Marks

	// id is unique to the write. So no two writes have the same bytes, no ETag occurs twice, and a writer whose answer
	// was lost recognises its own write.
	id string
	// prev is the id of the version that the write replaced, or noID. By it a writer recognises its own write after one
	// other write has followed.
	prev  string
	state state
}

// newID returns an id that no other write has.
func newID() string { return rand.Text() }

// seal returns the object's body: the line and the payload.
func seal(h header, payload []byte) []byte { return append([]byte(h.String()), payload...) }

// String returns the line.
func (h header) String() string {
	return fmt.Sprintf("%s %s %s %c %d %d %s\n", magic, h.id, h.prev, h.state, h.Write, h.Read, wire.EncodeLock(h.Lock))
}

// fields matches a line without its magic.
var fields = regexp.MustCompile(`^ ([A-Z2-7]{26}) (-{26}|[A-Z2-7]{26}) ([cw]) ([0-9]+ [0-9]+) ([^ ]*)$`)

// open splits an object into its header and its payload, which shares the memory of body. It accepts only what String
// writes, so a header has one spelling.
func open(body []byte) (header, []byte, error) {
	rest, ok := bytes.CutPrefix(body, []byte(magic))
	if !ok {
		return header{}, nil, fmt.Errorf("%w: it starts with %.24q, want %q", ErrMalformed, body, magic)
	}
	line, payload, ended := bytes.Cut(rest, []byte("\n"))
	if f := fields.FindStringSubmatch(string(line)); f != nil && ended {
		text := f[4]
		if f[5] != "" {
			lock, _ := wire.DecodeLock([]string{f[5]}) // "" for a malformed one, so that the marks are malformed too
			text += " " + lock
		}
		marks, ok := admission.ParseMarks(text)
		h := header{Marks: marks, id: f[1], prev: f[2], state: state(f[3][0])}
		if ok && (h.state == written && marks.Write != 0 || h.state == claimed && len(payload) == 0) {
			return h, payload, nil
		}
	}
	return header{}, nil, fmt.Errorf("%w: after %q the line is %.105q, want two ids, c or w, the marks of writers and readers, "+
		"and perhaps the name of a lock", ErrMalformed, magic, strings.ToValidUTF8(string(line), "\uFFFD"))
}
