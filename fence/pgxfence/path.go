package pgxfence

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// ClaimPath is [Marks.Claim] for a node of a tree of resources, with the token of a tree's lock on that node. It also
// fences earlier holders of the nodes above and below, and nobody on other branches. A path has a node at each slash
// and at its end: the nodes of "a/b/c" are "a", "a/b" and "a/b/c".
//
// On success the token is the write mark of the path's end, and the read marks of the nodes above are at least the
// token, as if it were a reader's there. Older transactions at the nodes have ended, as after Claim. The path's end
// follows the token's lock, and each node above follows its own lock in the tree. If the name of the token's lock does
// not tell the name of a lock above, the token is not refused there for that.
//
// The error is a [*fence.StaleError] that names the node if the token is older than the write mark of a node, or than
// one of the two marks of the path's end. A refusal changes nothing, unless a newer token comes during the call: then
// the nodes above may have been claimed. Otherwise the errors are those of Claim.
func (m *Marks) ClaimPath(ctx context.Context, db DB, path string) error {
	nodes, err := m.pathAdmission(ctx, path)
	if err != nil {
		return err
	}
	if err := checkDB(db); err != nil {
		return err
	}
	return m.engine.ClaimPath(ctx, database{db, m.txOpts}, nodes)
}

// CheckPath is [Marks.Check] for a node of a tree of resources. [Marks.ClaimPath] must have succeeded before, since
// CheckPath raises no mark. Until the transaction ends, no newer token is accepted at the node, nor the newer token of
// a node above or below. Transactions of other branches run side by side. At repeatable read and above, claims of other
// branches wait for it at the nodes above.
//
// On any error roll back the transaction. The error matches [ErrUnclaimed] if the path was not claimed with the token,
// or if the transaction's reads may be out of date. Otherwise the errors are those of ClaimPath and Check.
func (m *Marks) CheckPath(ctx context.Context, tx pgx.Tx, path string) error {
	nodes, err := m.pathAdmission(ctx, path)
	if err != nil {
		return err
	}
	if absent(tx) {
		return errors.New("pgxfence: tx is nil, want a pgx.Tx that has begun")
	}
	return m.engine.CheckPath(ctx, conn{tx}, nodes)
}

// pathAdmission is admission for a path.
func (m *Marks) pathAdmission(ctx context.Context, path string) (sqlmark.Path, error) {
	if err := m.made(); err != nil {
		return nil, err
	}
	return m.engine.AdmitPath(ctx, path)
}
