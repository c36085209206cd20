package sqlfence

import "github.com/leasefence/leasefence/internal/sqlmark"

// prefix is what errors begin with.
const prefix = "sqlfence"

var (
	// ErrUnknown says that the answer to COMMIT was lost, or that fn has ended the transaction itself: what it wrote is
	// committed or not. Read it back, under the same token, before writing it again.
	ErrUnknown = sqlmark.Unknown.Of(prefix)

	// ErrUnclaimed says that the transaction may have a snapshot from before the claim: what it reads can be older than
	// the last write under an older token. Roll it back, call [Fence.Claim] if the tenure has not begun with it, and
	// begin again with the check as the first statement.
	ErrUnclaimed = sqlmark.Unclaimed.Of(prefix)

	// ErrNoTable says that the table of the marks is missing.
	ErrNoTable = sqlmark.NoTable.Of(prefix)

	// ErrNoRow says that UpdateRow has found no row.
	ErrNoRow = sqlmark.NoRow.Of(prefix)
)
