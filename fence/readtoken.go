package fence

// ReadToken identifies a grant of a read lock at the resource. It has the form of a [Token] and is of the same series:
// of two grants of one lock, to readers or writers, the later one has the larger token.
//
// It is a separate type, so that a reader cannot write: no verb that writes takes it, [FromContext] does not find it
// in a reader's context, and over HTTP and gRPC it has a separate header. A resource that knows only writers finds no
// token in a reader's request and refuses it.
type ReadToken int64

// ParseRead is [Parse] for the token of a read lock.
func ParseRead(s string) (ReadToken, error) {
	t, err := Parse(s)
	return ReadToken(t), err
}

// Era returns the era of a valid token.
func (t ReadToken) Era() uint16 { return Token(t).Era() }

// Revision returns the revision of a valid token. In era 0 it equals the token.
func (t ReadToken) Revision() int64 { return Token(t).Revision() }

// Valid reports whether t is positive and has a revision other than 0.
func (t ReadToken) Valid() bool { return Token(t).Valid() }

// CheckEra is [Token.CheckEra].
func (t ReadToken) CheckEra(most uint16) error { return Token(t).CheckEra(most) }

// String returns the decimal form, as in the HTTP header Fencing-Read-Token. [ParseRead] reads it.
func (t ReadToken) String() string { return Token(t).String() }

// Text returns the token in a readable form, era:revision.
func (t ReadToken) Text() string { return Token(t).Text() }

// MarshalText is [Token.MarshalText].
func (t ReadToken) MarshalText() ([]byte, error) { return Token(t).MarshalText() }

// UnmarshalText is [Token.UnmarshalText].
func (t *ReadToken) UnmarshalText(text []byte) error { return (*Token)(t).UnmarshalText(text) }
