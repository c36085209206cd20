package admission_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/internal/admission"
)

// Stores keep these values, and operators write them.
func TestMarks_String(t *testing.T) {
	for want, m := range map[string]admission.Marks{
		"54 0":                  {Write: 54},
		"54 60":                 {Write: 54, Read: 60},
		"0 60":                  {Read: 60},
		"54 0 app/accounts":     {Write: 54, Lock: "app/accounts"},
		"0 60 a b\n é 54 0 a  ": {Read: 60, Lock: "a b\n é 54 0 a  "},
		"9223372036854775807 0": {Write: 1<<63 - 1},
	} {
		require.Equal(t, want, m.String())
		got, ok := admission.ParseMarks(want)
		require.True(t, ok, "%q", want)
		require.Equal(t, m, got)
	}
}

// Marks and name have exactly one spelling, and a read mark that is not above the write mark has none.
func FuzzParseMarks(f *testing.F) {
	for _, s := range []string{
		"", "0", "54", "54 ", "054 0", "54 00", "+54 0", " 54 0", "54  0", "54 0 ", "54 0  l", "54\t0", "54 0\n", "0 0", "0 0 l", "54 54",
		"54 41", "-1 0", "54 -1", "0 281474976710656", "281474976710656 0", "281474976710656 9223372036854775807",
		"9223372036854775808 0", "54 9223372036854775808", "٥٤ 0", "1e3 0", "54 l", "54 0 a\x00", "54 0 \xff",
		"54 0 " + strings.Repeat("l", fence.MaxLock), "54 0 " + strings.Repeat("l", fence.MaxLock+1),
	} {
		f.Add(s, int64(54), int64(60), s)
	}
	for _, lock := range []string{"", "accounts", " ", "60", "54 60", "a b", "a\n"} {
		f.Add("", int64(41), int64(54), lock)
		f.Add("", int64(41), int64(0), lock)
	}
	f.Fuzz(func(t *testing.T, s string, write, read int64, lock string) {
		m, ok := admission.ParseMarks(s)
		if ok {
			require.Equal(t, s, m.String())
			require.True(t, m.Write.Valid() || m.Write == 0 && m.Read != 0)
			require.True(t, m.Read == 0 || m.Read.Valid() && m.Read > m.Write)
			require.LessOrEqual(t, len(m.Lock), fence.MaxLock)
		}
		m = admission.Marks{Write: fence.Token(write), Read: fence.Token(read), Lock: lock}
		got, ok := admission.ParseMarks(m.String())
		valid := (m.Write.Valid() || m.Write == 0) && m.Read.Valid() && m.Read > m.Write || m.Write.Valid() && m.Read == 0
		require.Equal(t, valid && len(lock) <= fence.MaxLock, ok)
		if ok {
			require.Equal(t, m, got)
		}
	})
}
