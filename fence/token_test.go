package fence_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

const maxRevision = 1<<48 - 1

func TestNewToken_packsEraAndRevision(t *testing.T) {
	for _, tt := range []struct {
		era      uint16
		revision int64
		want     fence.Token // 0 if they are out of range
		text     string      // of the token, or of the error
	}{
		{0, 1, 1, "0:1"},
		{0, 54, 54, "0:54"},
		{0, maxRevision, maxRevision, "0:281474976710655"},
		{1, 1, 1<<48 + 1, "1:1"},
		{2, 42, 562949953421354, "2:42"},
		{32767, maxRevision, math.MaxInt64, "32767:281474976710655"},
		{32768, 1, 0, "era 32768: want 0 to 32767"},
		{0, 0, 0, "revision 0: want 1 to 281474976710655"},
		{0, -1, 0, "revision -1: want 1 to 281474976710655"},
		{0, maxRevision + 1, 0, "revision 281474976710656: want 1 to 281474976710655"},
	} {
		got, err := fence.NewToken(tt.era, tt.revision)
		require.Equal(t, tt.want, got)
		if tt.want == 0 {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.EqualError(t, err, "fence: invalid token: "+tt.text)
			continue
		}
		require.NoError(t, err)
		require.True(t, got.Valid())
		require.Equal(t, tt.era, got.Era())
		require.Equal(t, tt.revision, got.Revision())
		require.Equal(t, tt.text, got.Text())
	}
}

func TestParse_quotesTheStartOfTheValue(t *testing.T) {
	_, err := fence.Parse("x" + strings.Repeat("secret", 100))
	require.EqualError(t, err, `fence: invalid token "xsecretsecretsecretsecre"…: `+
		`want plain decimal 1 to 9223372036854775807, low 48 bits not 0`)
}

func TestToken_jsonIsAString(t *testing.T) {
	type record struct {
		Token fence.Token           `json:"token,omitzero"`
		Marks map[fence.Token]int64 `json:"marks,omitempty"`
	}
	in := record{Token: 32<<48 | 1, Marks: map[fence.Token]int64{54: 1}}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	require.JSONEq(t, `{"token":"9007199254740993","marks":{"54":1}}`, string(text)) // 2^53+1

	var out record
	require.NoError(t, json.Unmarshal(text, &out))
	require.Equal(t, in, out)

	text, err = json.Marshal(record{})
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(text))
}

// An error leaves a token as it was.
func TestToken_jsonRefusesInvalid(t *testing.T) {
	write, read := fence.Token(54), fence.ReadToken(54)
	for _, got := range []any{&write, &read} {
		require.ErrorIs(t, json.Unmarshal([]byte(`"055"`), got), fence.ErrInvalidToken)
		require.Error(t, json.Unmarshal([]byte(`55`), got), "a JSON number may have been rounded")
	}
	require.Equal(t, fence.Token(54), write)
	require.Equal(t, fence.ReadToken(54), read)
	_, err := fence.ParseRead("055")
	require.ErrorIs(t, err, fence.ErrInvalidToken)
	for _, tok := range []fence.Token{0, -1, 1 << 48} {
		for _, invalid := range []any{tok, fence.ReadToken(tok)} {
			_, err := json.Marshal(invalid)
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.ErrorContains(t, err, tok.String())
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"1", "54", "9223372036854775807",
		"", "0", "-1", "+1", "01", "00", " 1", "1 ", "1\n", "1.0", "1e3", "0x10", "1_000", "١", "0:1", "abc",
		"281474976710656",              // era 1, revision 0
		"9223372036854775808",          // one above the largest int64
		"9999999999999999999",          // 19 digits
		"10000000000000000000",         // 20 digits
		strings.Repeat("7", 1<<10),     // a log must not have the whole value
		strings.Repeat("\x00", 1<<10),  // nor unprintable characters
		"54\r\nFencing-Token: 9999999", // nor a second line
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := fence.Parse(s); err == nil {
			require.True(t, got.Valid())
			require.Equal(t, s, got.String())
		} else {
			require.ErrorIs(t, err, fence.ErrInvalidToken)
			require.Zero(t, got)
			require.Less(t, len(err.Error()), 200)
			require.False(t, strings.ContainsAny(err.Error(), "\n\x00"))
		}
	})
}

func TestToken_CheckEra(t *testing.T) {
	const era = fence.Token(1) << 48
	for _, tt := range []struct {
		token fence.Token
		most  uint16
		want  string
	}{
		{54, 0, ""},
		{15*era + 1, 0, ""},
		{16*era + 1, 0, "token 4503599627370497: its era is 16, want 0 to 15: if this era is in use, raise MaxEra"},
		{1795362355_031277477, 0, "its era is 6378, want 0 to 15"}, // a clock, in nanoseconds
		{math.MaxInt64, 0, "its era is 32767, want 0 to 15"},
		{2*era + 1, 1, "its era is 2, want 0 to 1"},
		{math.MaxInt64, 32767, ""},
	} {
		err := tt.token.CheckEra(tt.most)
		require.Equal(t, err, fence.ReadToken(tt.token).CheckEra(tt.most))
		if tt.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, fence.ErrInvalidToken)
		require.ErrorContains(t, err, tt.want)
	}
	require.NoError(t, fence.CheckMaxEra("a", 32767))
	require.EqualError(t, fence.CheckMaxEra("a: Options.MaxEra", 32768), "a: Options.MaxEra is 32768, want 1 to 32767, or 0 for 15")
}
