package sqlfence

import "github.com/leasefence/leasefence/fence/internal/sqlmark"

// prefix starts every error.
const prefix = "sqlfence"

var (
	// ErrUnknown reports that the answer to COMMIT was lost or that fn has ended the transaction. The writes are
	// committed, are not committed, or may still be committed. Before you write again, read inside [Marks.Do] under the
	// same token: its guard waits until the transaction has ended. A read outside of Do, or in DoShared, may come too
	// early.
	ErrUnknown = sqlmark.ErrUnknown

	// ErrUnclaimed reports that the transaction's snapshot may be from before the claim, so its reads may miss the last
	// write under an older token. Roll back, call [Marks.Claim], or [Marks.ClaimRead] for a reader, if the tenure has
	// not claimed, and begin again with the check as the first statement.
	ErrUnclaimed = sqlmark.ErrUnclaimed

	// ErrNoTable reports that the table of the marks is missing, or that an earlier version has created it and it lacks
	// a column: call [Marks.Migrate].
	ErrNoTable = sqlmark.ErrNoTable

	// ErrNoRow reports that UpdateRow has found no row.
	ErrNoRow = sqlmark.ErrNoRow
)
