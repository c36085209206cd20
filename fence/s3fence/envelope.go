package s3fence

import (
	"crypto/rand"
	"fmt"
	"hash/crc32"
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

	// maxPayload keeps an object within the 5 GiB that one PutObject can carry.
	maxPayload = 5<<30 - headerSize
)

// state says whether a payload has ever been written.
type state byte

const (
	claimed state = 'c' // a claim made the object; there is no payload
	written state = 'w'
)

// header is what stands before the payload: one line of 128 bytes, its end included.
//
//	leasefence-s3fence v01 0000000000000000054 <id> <previous id> w 0000000012 <crc> <crc>
type header struct {
	token fence.Token
	// id is of one write: two writes never have the same bytes, so that no ETag comes back, and a writer whose answer
	// was lost can tell its own write.
	id string
	// prev is the id of what was there before, or noID: a writer can tell that its own write came next to last.
	prev   string
	state  state
	length int64
	sum    uint32 // of the payload
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// newID returns an id that no other write has.
func newID() string { return rand.Text() }

// seal returns the object's body: the header, made to fit the payload, and the payload.
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

// parseHeader reads the line at the start of an object. A line has one spelling: what parses is what String gives.
func parseHeader(line []byte) (header, error) {
	if len(line) < headerSize {
		return header{}, fmt.Errorf("%w: %d bytes, want at least the %d of the header", ErrMalformed, len(line), headerSize)
	}
	text := string(line[:headerSize])
	if !strings.HasPrefix(text, magic+" ") {
		return header{}, fmt.Errorf("%w: it starts with %.24q, want %q", ErrMalformed, text, magic)
	}
	fields := strings.Split(strings.TrimSuffix(text[len(magic)+1:], "\n"), " ")
	if len(fields) != 7 {
		return header{}, fmt.Errorf("%w: %d fields in the header, want 7", ErrMalformed, len(fields))
	}
	token, errToken := strconv.ParseInt(fields[0], 10, 64)
	length, errLength := strconv.ParseInt(fields[4], 10, 64)
	sum, errSum := strconv.ParseUint(fields[5], 16, 32)
	h := header{
		token: fence.Token(token), id: fields[1], prev: fields[2], length: length, sum: uint32(sum), //nolint:gosec // 32 bits
	}
	if len(fields[3]) == 1 {
		h.state = state(fields[3][0])
	}
	switch {
	case errToken != nil || !h.token.Valid():
		return header{}, fmt.Errorf("%w: token %.24q, want %s", ErrMalformed, fields[0], legalToken)
	case !validID(h.id):
		return header{}, fmt.Errorf("%w: id %.32q, want %d of A to Z and 2 to 7", ErrMalformed, h.id, idSize)
	case h.prev != noID && !validID(h.prev):
		return header{}, fmt.Errorf("%w: previous id %.32q, want an id or hyphens", ErrMalformed, h.prev)
	case h.state != claimed && h.state != written:
		return header{}, fmt.Errorf("%w: state %.8q, want c or w", ErrMalformed, fields[3])
	case errLength != nil || length < 0 || length > maxPayload || h.state == claimed && length != 0:
		return header{}, fmt.Errorf("%w: length %.16q, want 0 to %d, and 0 in state c",
			ErrMalformed, fields[4], int64(maxPayload))
	case errSum != nil || h.String() != text:
		return header{}, fmt.Errorf("%w: the header is damaged: its checksum differs", ErrMalformed)
	}
	return h, nil
}

// open takes a whole object apart. The payload is a part of body.
func open(body []byte) (header, []byte, error) {
	h, err := parseHeader(body)
	if err != nil {
		return header{}, nil, err
	}
	payload := body[headerSize:]
	if int64(len(payload)) != h.length {
		return header{}, nil, fmt.Errorf("%w: a payload of %d bytes, want %d", ErrMalformed, len(payload), h.length)
	}
	if crc32.Checksum(payload, castagnoli) != h.sum {
		return header{}, nil, fmt.Errorf("%w: the payload is damaged: its checksum differs", ErrMalformed)
	}
	return h, payload, nil
}

func validID(s string) bool {
	return len(s) == idSize && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}
