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
	lockMagic = "leasefence-s3fence v03" // with a read mark (0 for none) and the name of the lock

	headerSize     = 128
	readHeaderSize = headerSize + tokenWidth + 1
	lockHeaderSize = readHeaderSize + lockWidth + 2 // without the name
	maxHeaderSize  = lockHeaderSize + fence.MaxLock
	idSize         = 26 // of rand.Text, 130 random bits
	noID           = "--------------------------"

	tokenWidth  = 19 // the digits of the largest int64
	lengthWidth = 10
	lockWidth   = 4
	sumSize     = 9 // of the header's checksum and the line feed

	// maxPayload keeps an object within the 5 GiB that one PutObject can carry.
	maxPayload = 5<<30 - headerSize
)

// state tells a written object from an object that was only claimed.
type state byte

const (
	claimed state = 'c' // the claim of a writer or a reader created the object; it has no payload
	written state = 'w'
)

// header is the line before the payload, with its line feed: 128 bytes, 148 with a read mark, or 154 and the name's
// length with the name of a lock.
//
//	leasefence-s3fence v01 0000000000000000054 <id> <previous id> w 0000000012 <crc> <crc>
//	leasefence-s3fence v02 0000000000000000054 0000000000000000060 <id> <previous id> w 0000000012 <crc> <crc>
//	leasefence-s3fence v03 0000000000000000054 0000000000000000000 <id> <previous id> w 0000000012 <crc> 0006 orders <crc>
//
// A read mark that is not above the write mark refuses nobody in addition, so it is not kept. An accepted writer is not
// below the read mark, so it writes the form without one. A version of this package that does not know readers or names
// finds the longer forms malformed: it neither reads nor overwrites the object.
type header struct {
	token fence.Token // the write mark; 0 if only a reader has claimed
	read  fence.Token // the read mark; 0 if it is not above the write mark
	lock  string      // the lock that the object follows; "" if no token has come with a name
	// id is unique to the write. So no two writes have the same bytes, no ETag occurs twice, and a writer whose answer
	// was lost recognises its own write.
	id string
	// prev is the id of the version that the write replaced, or noID. By it a writer recognises its own write after one
	// other write has followed.
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
	switch {
	case h.lock != "":
		return lockHeaderSize + len(h.lock)
	case h.read != 0:
		return readHeaderSize
	default:
		return headerSize
	}
}

// String returns the line.
func (h header) String() string {
	marks, lock := magic+" "+digits(h.token), ""
	switch {
	case h.lock != "":
		marks = lockMagic + " " + digits(h.token) + " " + digits(h.read)
		lock = fmt.Sprintf("%0*d %s ", lockWidth, len(h.lock), h.lock)
	case h.read != 0:
		marks = readMagic + " " + digits(h.token) + " " + digits(h.read)
	}
	line := fmt.Sprintf("%s %s %s %c %0*d %08x %s", marks, h.id, h.prev, h.state, lengthWidth, h.length, h.sum, lock)
	return string(resum(line))
}

// resum ends a line with its checksum.
func resum(line string) []byte {
	return fmt.Appendf(nil, "%s%08x\n", line, crc32.Checksum([]byte(line), castagnoli))
}

// digits returns a token in fixed width, so that names sort as tokens do.
func digits(t fence.Token) string { return fmt.Sprintf("%0*d", tokenWidth, int64(t)) }

// fields matches a header without its magic and the space after it.
var fields = regexp.MustCompile(`(?s)^([0-9]{19}) (?:([0-9]{19}) )?([A-Z2-7]{26}) (-{26}|[A-Z2-7]{26}) ([cw]) ` +
	`([0-9]{10}) ([0-9a-f]{8}) (?:[0-9]{4} (.*) )?[0-9a-f]{8}\n$`)

// lineSize returns the length of the line, judged by the start of the object.
func lineSize(body []byte) int {
	switch {
	case bytes.HasPrefix(body, []byte(readMagic+" ")):
		return readHeaderSize
	case !bytes.HasPrefix(body, []byte(lockMagic+" ")):
		return headerSize
	case len(body) < lockHeaderSize:
		return lockHeaderSize
	}
	const at = readHeaderSize - sumSize // of the name's length; the checksum finds an illegal one
	n, _ := strconv.ParseUint(string(body[at:at+lockWidth]), 10, 16)
	return lockHeaderSize + int(n) //nolint:gosec // 16 bits
}

// parseHeader parses the header at the start of an object. It accepts only what String writes, so a header has one
// spelling.
func parseHeader(body []byte) (header, error) {
	size := lineSize(body)
	if len(body) < size {
		return header{}, fmt.Errorf("%w: %d bytes, want at least the %d of the header", ErrMalformed, len(body), size)
	}
	text := string(body[:size])
	if size == headerSize && !strings.HasPrefix(text, magic+" ") {
		return header{}, fmt.Errorf("%w: it starts with %.24q, want %q, v02 or v03", ErrMalformed, text, magic)
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
			token: fence.Token(token), read: fence.Token(read), lock: f[8], id: f[3], prev: f[4], state: state(f[5][0]),
			length: length, sum: uint32(sum), //nolint:gosec // 32 bits
		}
		if err == nil && readErr == nil && h.String() == text && h.marksAreValid() &&
			length <= maxPayload && (h.state == written || length == 0) {
			if h.lock != "" && fence.CheckLock(h.lock) != nil {
				return header{}, fmt.Errorf("%w: the header has the lock %.64q of %d bytes, want 1 to %d of UTF-8 without NUL",
					ErrMalformed, h.lock, len(h.lock), fence.MaxLock)
			}
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

// open splits a whole object into header and payload. body may be cut off after most bytes of payload and one more,
// which is enough to report that the payload is too large. The payload shares the memory of body.
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
