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

func TestOpen_refusesEverythingElse(t *testing.T) {
	const good = magic + " " + idA + " " + noID + " w 54 0 orders\n"
	_, _, err := open([]byte(good + "hello"))
	require.NoError(t, err)
	_, _, err = open(nil)
	require.ErrorIs(t, err, ErrMalformed)
	for from, to := range map[string]string{
		magic:            strings.Repeat("x", 200),
		"/1":             "/2",
		idA:              strings.ToLower(idA),
		noID:             strings.Repeat("1", 26),
		" w ":            " c ", // claimed, with a payload
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
		body := []byte(strings.Replace(good+"hello", from, to, 1))
		h, payload, err := open(body)
		require.ErrorIs(t, err, ErrMalformed, "%q", body)
		require.NotErrorIs(t, err, fence.ErrInvalidToken, "the caller's token is not to blame")
		require.Zero(t, h)
		require.Nil(t, payload)
		requireTame(t, err)
	}
}

func FuzzOpen(f *testing.F) {
	for _, marks := range []admission.Marks{{Write: 54}, {Write: 1<<63 - 1}, {Write: 54, Read: 60, Lock: "orders"}, {Read: 60, Lock: "é"}} {
		f.Add(seal(header{marks, idA, noID, written}, []byte("hello")))
		f.Add(seal(header{marks, idA, idB, claimed}, nil))
	}
	f.Add([]byte(nil))
	f.Add(bytes.Repeat([]byte("0"), headerLimit))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, payload, err := open(body)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			requireTame(t, err)
			return
		}
		require.LessOrEqual(t, len(h.String()), headerLimit)
		require.Equal(t, body, seal(h, payload), "an envelope has one spelling")
	})
}

// requireTame checks that an error about an object's content is one printable line, and bounded.
func requireTame(t *testing.T, err error) {
	t.Helper()
	require.Less(t, len(err.Error()), 600)
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "\x00")
}
