package s3fence

import (
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

const (
	magic = "leasefence-s3fence v01"

	headerSize = 128
	idSize     = 26 // of rand.Text, 130 random bits
	noID       = "--------------------------"

	tokenWidth  = 19 // the digits of the largest int64
	lengthWidth = 10
	sumSize     = 9 // of the header's checksum and the line feed

	// maxPayload keeps an object within the 5 GiB that one PutObject can carry.
	maxPayload = 5<<30 - headerSize
)

// state tells a written object from one that was only claimed.
type state byte

const (
	claimed state = 'c' // a claim created the object; it has no payload
	written state = 'w'
)

// header is the line before the payload: 128 bytes, with its line feed.
//
//	leasefence-s3fence v01 0000000000000000054 <id> <previous id> w 0000000012 <crc> <crc>
type header struct {
	token fence.Token
	// id is unique to the write: no two writes have the same bytes, so no ETag comes back, and a writer whose answer was
	// lost recognises its own write.
	id string
	// prev is the id of the version that the write replaced, or noID: a writer recognises its own write after one more.
	prev   string
	state  state
	length int64
	sum    uint32 // of the payload
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// newID returns an id that no other write has.
func newID() string { return rand.Text() }

// seal returns the object's body: the header, completed with the payload's length and checksum, and the payload.
func seal(h header, payload []byte) []byte {
	h.length, h.sum = int64(len(payload)), crc32.Checksum(payload, castagnoli)
	body := make([]byte, 0, headerSize+len(payload))
	body = append(body, h.String()...)
	return append(body, payload...)
}

// String returns the line.
func (h header) String() string {
	return string(resum(fmt.Sprintf("%s %s %s %s %c %0*d %08x ",
		magic, digits(h.token), h.id, h.prev, h.state, lengthWidth, h.length, h.sum)))
}

// resum ends a line with its checksum.
func resum(line string) []byte {
	return fmt.Appendf(nil, "%s%08x\n", line, crc32.Checksum([]byte(line), castagnoli))
}

// digits returns a token in fixed width, so that names sort as tokens do.
func digits(t fence.Token) string { return fmt.Sprintf("%0*d", tokenWidth, int64(t)) }

// fields are those of a header behind the magic, each of a fixed width, so that a header has one spelling.
var fields = regexp.MustCompile(`^([0-9]{19}) ([A-Z2-7]{26}) (-{26}|[A-Z2-7]{26}) ([cw]) ([0-9]{10}) ([0-9a-f]{8}) [0-9a-f]{8}\n$`)

// parseHeader reads the header at the start of an object. What it accepts is what String gives.
func parseHeader(body []byte) (header, error) {
	if len(body) < headerSize {
		return header{}, fmt.Errorf("%w: %d bytes, want at least the %d of the header", ErrMalformed, len(body), headerSize)
	}
	text := string(body[:headerSize])
	rest, ours := strings.CutPrefix(text, magic+" ")
	if !ours {
		return header{}, fmt.Errorf("%w: it starts with %.24q, want %q", ErrMalformed, text, magic)
	}
	if text != string(resum(text[:headerSize-sumSize])) {
		return header{}, fmt.Errorf("%w: the header is damaged: its checksum differs", ErrMalformed)
	}
	if f := fields.FindStringSubmatch(rest); f != nil {
		token, err := strconv.ParseInt(f[1], 10, 64)
		length, _ := strconv.ParseInt(f[5], 10, 64)
		sum, _ := strconv.ParseUint(f[6], 16, 32)
		h := header{
			token: fence.Token(token), id: f[2], prev: f[3], state: state(f[4][0]),
			length: length, sum: uint32(sum), //nolint:gosec // 32 bits
		}
		if err == nil && h.token.Valid() && length <= maxPayload && (h.state == written || length == 0) {
			return h, nil
		}
	}
	return header{}, fmt.Errorf("%w: the header has %.105q, want a token (%s), two ids, c or w, and a length of 0 to %d, 0 with c",
		ErrMalformed, rest, legalToken, int64(maxPayload))
}

// open splits a whole object. The payload shares the memory of body.
func open(body []byte) (header, []byte, error) {
	h, err := parseHeader(body)
	if err != nil {
		return header{}, nil, err
	}
	payload := body[headerSize:]
	if int64(len(payload)) != h.length {
		return header{}, nil, fmt.Errorf("%w: the payload has %d bytes, want %d", ErrMalformed, len(payload), h.length)
	}
	if crc32.Checksum(payload, castagnoli) != h.sum {
		return header{}, nil, fmt.Errorf("%w: the payload is damaged: its checksum differs", ErrMalformed)
	}
	return h, payload, nil
}
