package s3fence

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
)

const (
	idA = "AAAAAAAAAAAAAAAAAAAAAAAAAA"
	idB = "BBBBBBBBBBBBBBBBBBBBBBBB77"
)

// People and later versions read the form too.
func TestHeader_isWhatIsDocumented(t *testing.T) {
	longest := header{
		Marks: admission.Marks{Write: 1<<63 - 2, Read: 1<<63 - 1, Lock: strings.Repeat("é", fence.MaxLock/2)}, id: idA, prev: idB, state: claimed,
	}
	require.Less(t, len(longest.String()), headerLimit)
	for want, h := range map[string]header{
		"leasefence-s3fence/1 " + idA + " " + noID + " w 54 0 ":       {admission.Marks{Write: 54}, idA, noID, written},
		"leasefence-s3fence/1 " + idA + " " + idB + " c 0 60 ":        {admission.Marks{Read: 60}, idA, idB, claimed},
		"leasefence-s3fence/1 " + idA + " " + noID + " w 54 60 a%0Ab": {admission.Marks{Write: 54, Read: 60, Lock: "a\nb"}, idA, noID, written},
		strings.TrimSuffix(longest.String(), "\n"):                    longest,
	} {
		require.Equal(t, want+"\n", h.String())
		payload := map[state]string{written: "x\x00\nhello\n"}[h.state]
		got, rest, err := open(seal(h, []byte(payload)))
		require.NoError(t, err)
		require.Equal(t, h, got)
		require.Equal(t, payload, string(rest))
	}
}

// An envelope has one spelling. A written object has the mark of a writer, one that was only claimed has no payload.
func FuzzOpen(f *testing.F) {
	for _, marks := range []admission.Marks{{Write: 54}, {Write: 1<<63 - 1}, {Write: 54, Read: 60, Lock: "orders"}, {Read: 60, Lock: "é"}} {
		f.Add(seal(header{marks, idA, noID, written}, []byte("hello")))
		f.Add(seal(header{marks, idA, idB, claimed}, nil))
	}
	f.Add([]byte(nil))
	f.Add(bytes.Repeat([]byte("0"), headerLimit))
	for from, to := range map[string]string{
		magic:            strings.Repeat("x", 200),
		"/1":             "/2",
		idA:              strings.ToLower(idA),
		noID:             strings.Repeat("1", 26),
		" w ":            " c ",
		" 54 0 ":         " 0 60 ",
		" 54 ":           " 054 ",
		"54 0":           "54 41",
		"54":             "-54",
		" 0 ":            " 281474976710656 ",
		"w 54":           "x 54",
		"w ":             "w  ",
		"orders":         "a b",
		"rders":          "%61",
		" orders":        "",
		"orders\n":       "orders",
		"s\n":            "s\r\n",
		"ders":           "%00",
		"ord":            "%FF",
		"orders\nhello":  strings.Repeat("l", fence.MaxLock+1) + "\n",
		" orders\nhello": "\x00\xff",
	} {
		f.Add([]byte(strings.Replace(magic+" "+idA+" "+noID+" w 54 0 orders\nhello", from, to, 1)))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		h, payload, err := open(body)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			require.NotErrorIs(t, err, fence.ErrInvalidToken, "the caller's token is not to blame")
			require.Zero(t, h)
			require.Nil(t, payload)
			require.Less(t, len(err.Error()), 600)
			require.False(t, strings.ContainsAny(err.Error(), "\n\x00"))
			return
		}
		require.LessOrEqual(t, len(h.String()), headerLimit)
		require.Equal(t, body, seal(h, payload))
		require.True(t, h.state == written && h.Write.Valid() || h.state == claimed && len(payload) == 0)
		require.Regexp(t, "^[A-Z2-7]{26} (-{26}|[A-Z2-7]{26})$", h.id+" "+h.prev)
		require.True(t, h.Lock == "" || fence.CheckLock(h.Lock) == nil)
	})
}
