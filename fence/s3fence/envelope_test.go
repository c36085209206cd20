package s3fence

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

const (
	idA = "AAAAAAAAAAAAAAAAAAAAAAAAAA"
	idB = "BBBBBBBBBBBBBBBBBBBBBBBB77"
)

// People and later versions read the format too, so it does not change. A version that does not know readers, or names,
// finds the objects with them malformed by the version in their line.
func TestHeader_isWhatIsDocumented(t *testing.T) {
	const ids = " AAAAAAAAAAAAAAAAAAAAAAAAAA -------------------------- w 0000000005 9a71bb4c "
	for _, tt := range []struct {
		token, read fence.Token
		lock, want  string
	}{
		{54, 0, "", "leasefence-s3fence v01 0000000000000000054" + ids},
		{54, 60, "", "leasefence-s3fence v02 0000000000000000054 0000000000000000060" + ids},
		{54, 0, "orders", "leasefence-s3fence v03 0000000000000000054 0000000000000000000" + ids + "0006 orders "},
		{54, 60, "orders", "leasefence-s3fence v03 0000000000000000054 0000000000000000060" + ids + "0006 orders "},
	} {
		body := string(seal(header{token: tt.token, read: tt.read, lock: tt.lock, id: idA, prev: noID, state: written}, []byte("hello")))
		line, payload, _ := strings.Cut(body, "\n")
		require.Equal(t, tt.want, line[:len(line)-8], "all but the line's own checksum")
		require.Equal(t, "hello", payload)
	}
}

func TestOpen_roundTrip(t *testing.T) {
	for _, tt := range []struct {
		h       header
		payload string
	}{
		{header{token: 1, id: idA, prev: noID, state: written}, ""},
		{header{token: 1<<63 - 1, id: idA, prev: idB, state: written}, "x\x00\n"},
		{header{token: 54, id: newID(), prev: newID(), state: claimed}, ""},
		{header{token: 54, id: newID(), prev: newID(), state: written}, strings.Repeat("x", 1<<20)},
		{header{token: 54, read: 60, id: newID(), prev: newID(), state: written}, "hello"},
		{header{token: 54, read: 60, id: newID(), prev: newID(), state: claimed}, ""},
		{header{token: 0, read: 1<<63 - 1, id: newID(), prev: noID, state: claimed}, ""},
		{header{token: 54, lock: "a", id: newID(), prev: noID, state: written}, "hello"},
		{header{token: 54, read: 60, lock: "a b\n é 0001 a ", id: newID(), prev: newID(), state: written}, "hello\n"},
		{header{read: 60, lock: strings.Repeat("l", fence.MaxLock), id: newID(), prev: noID, state: claimed}, ""},
	} {
		got, payload, err := open(seal(tt.h, []byte(tt.payload)), maxPayload)
		require.NoError(t, err)
		require.Equal(t, tt.payload, string(payload))
		require.Equal(t, tt.h.token, got.token)
		require.Equal(t, tt.h.read, got.read)
		require.Equal(t, tt.h.lock, got.lock)
		require.Equal(t, tt.h.id, got.id)
		require.Equal(t, tt.h.prev, got.prev)
		require.Equal(t, tt.h.state, got.state)
	}
}

// forge returns a header with a part replaced and a correct checksum.
func forge(t *testing.T, from, to string) []byte {
	t.Helper()
	return forgeOf(t, header{token: 54, id: idA, prev: noID, state: written, length: 5, sum: 0x9a71bb4c}, from, to)
}

func forgeOf(t *testing.T, h header, from, to string) []byte {
	t.Helper()
	line := h.String()
	line = line[:len(line)-9]
	require.Equal(t, 1, strings.Count(line, from), "%q", from)
	return resum(strings.Replace(line, from, to, 1))
}

// forgeMarks returns an object with a read mark whose marks are replaced.
func forgeMarks(t *testing.T, marks string) []byte {
	t.Helper()
	h := header{token: 54, read: 60, id: idA, prev: noID, state: written, length: 5, sum: 0x9a71bb4c}
	return append(forgeOf(t, h, "0000000000000000054 0000000000000000060", marks), "hello"...)
}

// forgeLock returns an object with a lock whose name and length are replaced.
func forgeLock(t *testing.T, lock string) []byte {
	t.Helper()
	h := header{token: 54, read: 60, lock: "orders", id: idA, prev: noID, state: written, length: 5, sum: 0x9a71bb4c}
	return append(forgeOf(t, h, "0006 orders", lock), "hello"...)
}

func TestOpen_refusesEverythingElse(t *testing.T) {
	good := seal(header{token: 54, id: idA, prev: noID, state: written}, []byte("hello"))
	for name, tt := range map[string]struct {
		body []byte
		want string
	}{
		"nothing":             {nil, "0 bytes, want at least the 128 of the header"},
		"short":               {good[:127], "127 bytes"},
		"no envelope":         {bytes.Repeat([]byte("x"), 200), "it starts with"},
		"another version":     {append(forge(t, "v01", "v04"), "hello"...), "it starts with"},
		"no readers, yet v02": {append(forge(t, "v01", "v02"), bytes.Repeat([]byte("x"), 30)...), "the header is damaged"},
		"readers, short":      {seal(header{token: 54, read: 60, id: idA, prev: noID, state: claimed}, nil)[:147], "at least the 148"},
		"readers, yet v01": {append(forgeOf(t, header{
			token: 54, read: 60, id: idA, prev: noID, state: written, length: 5, sum: 0x9a71bb4c,
		}, "v02", "v01"), "hello"...), "the header is damaged"},
		"no lock, yet v03": {append(forge(t, "v01", "v03"), bytes.Repeat([]byte("x"), 30)...), "the header is damaged"},
		"lock, yet v02": {append(forgeOf(t, header{
			token: 54, read: 60, lock: "orders", id: idA, prev: noID, state: written, length: 5, sum: 0x9a71bb4c,
		}, "v03", "v02"), "hello"...), "the header is damaged"},
		"lock, short": {forgeLock(t, "0006 orders")[:159], "159 bytes, want at least the 160"},
		"lock, shorter than a line without its name": {forgeLock(t, "0006 orders")[:153], "153 bytes, want at least the 154"},
		"length of the lock too high":                {forgeLock(t, "0007 orders"), "the header is damaged"},
		"length of the lock too low":                 {forgeLock(t, "0005 orders"), "the header is damaged"},
		"length of the lock signed":                  {forgeLock(t, "+006 orders"), "the header is damaged"},
		"length of the lock in hex":                  {append(forgeLock(t, "000a ordersorde"), "hello"...), "the header is damaged"},
		"lock of no bytes":                           {forgeLock(t, "0000 "), "the header has"},
		"lock, no space before it":                   {forgeLock(t, "0006-orders"), "the header has"},
		"lock with NUL":                              {forgeLock(t, "0006 order\x00"), `the lock "order\x00" of 6 bytes, want 1 to 2304 of UTF-8`},
		"lock not UTF-8":                             {forgeLock(t, "0006 order\xff"), `the lock "order\xff" of 6 bytes, want 1 to 2304 of UTF-8`},
		"lock too long":                              {forgeLock(t, "2305 "+strings.Repeat("l", 2305)), "of 2305 bytes, want 1 to 2304"},
		"lock, read mark as high": {append(forgeOf(t, header{
			token: 54, read: 60, lock: "orders", id: idA, prev: noID, state: written, length: 5, sum: 0x9a71bb4c,
		}, "0000000000000000060", "0000000000000000054"), "hello"...), "the header has"},
		"lock, both marks 0": {append(forgeOf(t, header{
			token: 54, lock: "orders", id: idA, prev: noID, state: claimed,
		}, "0000000000000000054", "0000000000000000000"), "hello"...), "the header has"},
		"read mark as high":     {forgeMarks(t, "0000000000000000060 0000000000000000060"), "the header has"},
		"read mark lower":       {forgeMarks(t, "0000000000000000060 0000000000000000054"), "the header has"},
		"read mark 0":           {forgeMarks(t, "0000000000000000054 0000000000000000000"), "the header has"},
		"both marks 0":          {forgeMarks(t, "0000000000000000000 0000000000000000000"), "the header has"},
		"written, by nobody":    {forgeMarks(t, "0000000000000000000 0000000000000000060"), "the header has"},
		"read mark no revision": {forgeMarks(t, "0000000000000000054 0000281474976710656"), "the header has"},
		"mark of no revision":   {forgeMarks(t, "0000281474976710656 9223372036854775807"), "the header has"},
		"read mark too large":   {forgeMarks(t, "0000000000000000054 9999999999999999999"), "the header has"},
		"token 0":               {append(forge(t, "0000000000000000054", "0000000000000000000"), "hello"...), "the header has"},
		"token of no revision":  {append(forge(t, "0000000000000000054", "0000281474976710656"), "hello"...), "the header has"},
		"token negative":        {append(forge(t, "0000000000000000054", "-000000000000000054"), "hello"...), "the header has"},
		"token signed":          {append(forge(t, "0000000000000000054", "+000000000000000054"), "hello"...), "the header has"},
		"token too large":       {append(forge(t, "0000000000000000054", "9999999999999999999"), "hello"...), "the header has"},
		"token in hex":          {append(forge(t, "0000000000000000054", "0x00000000000000054"), "hello"...), "the header has"},
		"id in lower case":      {append(forge(t, idA, strings.ToLower(idA)), "hello"...), "the header has"},
		"previous id malformed": {append(forge(t, noID, strings.Repeat("1", idSize)), "hello"...), "the header has"},
		"state unknown":         {append(forge(t, " w ", " x "), "hello"...), "the header has"},
		"claimed with payload":  {append(forge(t, " w ", " c "), "hello"...), "the header has"},
		"length negative":       {append(forge(t, "w 0000000005", "w -000000005"), "hello"...), "the header has"},
		"length too large":      {append(forge(t, "w 0000000005", "w 9999999999"), "hello"...), "the header has"},
		"sum no hex":            {append(forge(t, "9a71bb4c", "9a71bb4g"), "hello"...), "the header has"},
		"sum in upper case":     {append(forge(t, "9a71bb4c", "9A71BB4C"), "hello"...), "the header has"},
		"two spaces":            {append(forge(t, " w ", "  w"), "hello"...), "the header has"},
		"header damaged":        {bytes.Replace(good, []byte("54 "), []byte("55 "), 1), "header is damaged"},
		"payload damaged":       {append(bytes.Clone(good[:headerSize]), "hellO"...), "payload is damaged"},
		"payload cut":           {good[:len(good)-1], "the payload has 4 bytes, want 5"},
		"payload longer":        {append(bytes.Clone(good), 'x'), "the payload has 6 bytes, want 5"},
	} {
		t.Run(name, func(t *testing.T) {
			h, payload, err := open(tt.body, maxPayload)
			require.ErrorIs(t, err, ErrMalformed)
			require.ErrorContains(t, err, tt.want)
			require.Zero(t, h)
			require.Nil(t, payload)
			requireTame(t, err, 300)
		})
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(seal(header{token: 54, id: idA, prev: noID, state: written}, []byte("hello")))
	f.Add(seal(header{token: 1<<63 - 1, id: idA, prev: idB, state: claimed}, nil))
	f.Add(seal(header{token: 54, read: 60, id: idA, prev: idB, state: written}, []byte("hello")))
	f.Add(seal(header{read: 60, id: idA, prev: noID, state: claimed}, nil))
	f.Add(seal(header{token: 54, read: 60, lock: "orders", id: idA, prev: idB, state: written}, []byte("hello")))
	f.Add(seal(header{token: 54, lock: "orders", id: idA, prev: noID, state: claimed}, nil))
	f.Add([]byte(nil))
	f.Add(bytes.Repeat([]byte("0"), readHeaderSize))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, payload, err := open(body, maxPayload)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			requireTame(t, err, 300)
		} else {
			require.True(t, h.marksAreValid())
			require.Equal(t, body, seal(h, payload), "an envelope has one spelling")
		}
		// A fuzzer does not find checksums: correct the checksum to reach the other checks.
		for _, size := range []int{headerSize, readHeaderSize, lineSize(body)} {
			if len(body) < size {
				continue
			}
			resummed := resum(string(body[:size-9]))
			if h, err := parseHeader(resummed); err == nil && h.size() == size {
				require.LessOrEqual(t, size, maxHeaderSize)
				require.True(t, h.token.Valid() || h.token == 0 && h.read.Valid() && h.state == claimed)
				require.True(t, h.read == 0 || h.read.Valid() && h.read > h.token)
				require.Equal(t, string(resummed), h.String())
			}
		}
	})
}

// requireTame checks that an error about an object's content is one printable line, and bounded.
func requireTame(t *testing.T, err error, most int) {
	t.Helper()
	require.Less(t, len(err.Error()), most)
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "\x00")
}
