package sqlmark

import (
	"context"
	"database/sql"
	"errors"

	"github.com/leasefence/leasefence/fence"
)

// readColumn is the column of the read mark. Tables from before there were readers lack it.
const readColumn = "read_token"

// claimant is a token and whether it is a reader's.
type claimant struct {
	fence.Token

	read bool
}

func writer(t fence.Token) claimant     { return claimant{Token: t} }
func reader(t fence.ReadToken) claimant { return claimant{fence.Token(t), true} }

// verb names a verb of the claimant in errors.
func (c claimant) verb(name string) string {
	if c.read {
		return name + " to read"
	}
	return name
}

// marks are the highest token of a writer and that of a reader at a resource, each 0 if none has come.
type marks struct{ write, read fence.Token }

// of returns the mark that the claimant raises.
func (m marks) of(c claimant) fence.Token {
	if c.read {
		return m.read
	}
	return m.write
}

// own returns marks that are 0 but for the claimant's.
func (c claimant) own() marks {
	if c.read {
		return marks{read: c.Token}
	}
	return marks{write: c.Token}
}

// refuse returns an error if the claimant is older than a mark that it must not be older than: both marks for a writer, the
// write mark for a reader. If both marks refuse, the error has the write mark.
func refuse(resource string, c claimant, m marks) error {
	switch {
	case c.Token < m.write:
		return &fence.StaleError{Resource: resource, Token: c.Token, Highest: m.write, Read: c.read}
	case !c.read && c.Token < m.read:
		return &fence.StaleError{Resource: resource, Token: c.Token, Highest: m.read, ByReader: true}
	}
	return nil
}

// readMarks runs a query for the two marks. It returns none if there is no row.
func readMarks(ctx context.Context, q Conn, query, resource string) (marks, error) {
	var write, read int64
	err := q.QueryRow(ctx, query, resource).Scan(&write, &read)
	if errors.Is(err, sql.ErrNoRows) {
		return marks{}, nil
	}
	return marks{fence.Token(write), fence.Token(read)}, err
}

// markState is the result of a guard.
type markState struct {
	marks           // before the guard
	announced marks // by claims that may still wait for older transactions; they only refuse
	snapshot  bool  // the transaction's snapshot may be older than its lock on the mark
	trace     bool  // the transaction has an exclusive lock on the mark and must write it
}

// highest returns the marks below which tokens are refused.
func (s markState) highest() marks {
	return marks{max(s.write, s.announced.write), max(s.read, s.announced.read)}
}

// statements are those that differ between writers and readers.
type statements struct{ raise, announce string }

// modes are the statements of writers and those of readers.
type modes struct{ writer, reader statements }

func (m modes) of(c claimant) statements {
	if c.read {
		return m.reader
	}
	return m.writer
}
