package s3fence

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

const (
	magic     = "leasefence-s3fence v01"
	readMagic = "leasefence-s3fence v02" // with a read mark

	headerSize    = 128
	maxHeaderSize = headerSize + tokenWidth + 1
	idSize        = 26 // of rand.Text, 130 random bits
	noID          = "--------------------------"

	tokenWidth  = 19 // the digits of the largest int64
	lengthWidth = 10
	sumSize     = 9 // of the header's checksum and the line feed

	// maxPayload keeps an object within the 5 GiB that one PutObject can carry.
	maxPayload = 5<<30 - headerSize
)

// state tells a written object from one that was only claimed.
type state byte

const (
	claimed state = 'c' // a claim created the object, a writer's or a reader's; it has no payload
	written state = 'w'
)

// header is the line before the payload, with its line feed: 128 bytes, or 148 with a read mark.
//
//	leasefence-s3fence v01 0000000000000000054 <id> <previous id> w 0000000012 <crc> <crc>
//	leasefence-s3fence v02 0000000000000000054 0000000000000000060 <id> <previous id> w 0000000012 <crc> <crc>
//
// A read mark that is not above the write mark refuses nobody whom the write mark does not, so it is not kept. A writer that is
// accepted is not below the read mark, and so writes the form without one. A version of this package that does not know readers
// takes the form with one for malformed: it neither reads nor overwrites it.
type header struct {
	token fence.Token // the write mark; 0 if only a reader has claimed
	read  fence.Token // the read mark; 0 if it is not above the write mark
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
	body := make([]byte, 0, h.size()+len(payload))
	body = append(body, h.String()...)
	return append(body, payload...)
}

// size is the length of the line.
func (h header) size() int {
	if h.read != 0 {
		return maxHeaderSize
	}
	return headerSize
}

// String returns the line.
func (h header) String() string {
	marks := magic + " " + digits(h.token)
	if h.read != 0 {
		marks = readMagic + " " + digits(h.token) + " " + digits(h.read)
	}
	return string(resum(fmt.Sprintf("%s %s %s %c %0*d %08x ", marks, h.id, h.prev, h.state, lengthWidth, h.length, h.sum)))
}

// resum ends a line with its checksum.
func resum(line string) []byte {
	return fmt.Appendf(nil, "%s%08x\n", line, crc32.Checksum([]byte(line), castagnoli))
}

// digits returns a token in fixed width, so that names sort as tokens do.
func digits(t fence.Token) string { return fmt.Sprintf("%0*d", tokenWidth, int64(t)) }

// fields are those of a header behind the magic, each of a fixed width, so that a header has one spelling.
var fields = regexp.MustCompile(
	`^([0-9]{19}) (?:([0-9]{19}) )?([A-Z2-7]{26}) (-{26}|[A-Z2-7]{26}) ([cw]) ([0-9]{10}) ([0-9a-f]{8}) [0-9a-f]{8}\n$`)

// parseHeader reads the header at the start of an object. What it accepts is what String gives.
func parseHeader(body []byte) (header, error) {
	size, readers := headerSize, bytes.HasPrefix(body, []byte(readMagic+" "))
	if readers {
		size = maxHeaderSize
	}
	if len(body) < size {
		return header{}, fmt.Errorf("%w: %d bytes, want at least the %d of the header", ErrMalformed, len(body), size)
	}
	text := string(body[:size])
	if !readers && !strings.HasPrefix(text, magic+" ") {
		return header{}, fmt.Errorf("%w: it starts with %.24q, want %q or %q", ErrMalformed, text, magic, readMagic)
	}
	if text != string(resum(text[:size-sumSize])) {
		return header{}, fmt.Errorf("%w: the header is damaged: its checksum differs", ErrMalformed)
	}
	rest := text[len(magic)+1:]
	if f := fields.FindStringSubmatch(rest); f != nil {
		token, err := strconv.ParseInt(f[1], 10, 64)
		read, readErr := strconv.ParseInt(cmp.Or(f[2], "0"), 10, 64)
		length, _ := strconv.ParseInt(f[6], 10, 64)
		sum, _ := strconv.ParseUint(f[7], 16, 32)
		h := header{
			token: fence.Token(token), read: fence.Token(read), id: f[3], prev: f[4], state: state(f[5][0]),
			length: length, sum: uint32(sum), //nolint:gosec // 32 bits
		}
		if err == nil && readErr == nil && readers == (h.read != 0) && h.marksAreValid() &&
			length <= maxPayload && (h.state == written || length == 0) {
			return h, nil
		}
	}
	return header{}, fmt.Errorf("%w: the header has %.105q, want a token (%s) or two that rise, two ids, c or w, "+
		"and a length of 0 to %d, 0 with c", ErrMalformed, rest, legalToken, int64(maxPayload))
}

func (h header) marksAreValid() bool {
	switch {
	case h.read == 0:
		return h.token.Valid()
	case h.token == 0 && h.state == written:
		return false
	default:
		return h.read.Valid() && h.read > h.token && (h.token == 0 || h.token.Valid())
	}
}

// open splits a whole object, or as much of it as shows that its payload has more than most bytes. The payload shares the memory
// of body.
func open(body []byte, most int64) (header, []byte, error) {
	h, err := parseHeader(body)
	if err != nil {
		return header{}, nil, err
	}
	if h.length > most {
		return header{}, nil, fmt.Errorf("the object has more than Options.MaxSize, %d bytes", most)
	}
	payload := body[h.size():]
	if int64(len(payload)) != h.length {
		return header{}, nil, fmt.Errorf("%w: the payload has %d bytes, want %d", ErrMalformed, len(payload), h.length)
	}
	if crc32.Checksum(payload, castagnoli) != h.sum {
		return header{}, nil, fmt.Errorf("%w: the payload is damaged: its checksum differs", ErrMalformed)
	}
	return h, payload, nil
}
