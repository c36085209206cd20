package pgxfence

import (
	"context"
	"time"

	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// DefaultLog is the usual name of the audit trail's table, see [Options].
const DefaultLog = sqlmark.DefaultLog // "fencing_token_log"

// Query selects rows of an audit trail. The zero value selects the newest of all resources.
type Query struct {
	Resource     string    // empty for all resources
	Since, Until time.Time // zero for no bound
	Limit        int       // the newest tenures and the newest refusals, 1 to 100,000 each, default 1,000
}

// Release records the end of the tenure of ctx's token in the audit trail. ctx must not have ended; the token's tenure
// may have:
//
//	defer func() {
//		err = errors.Join(err, marks.Release(context.WithoutCancel(ctx), db, "ledger", audit.CauseOf(ctx)))
//	}()
//
// The cause is [audit.CauseExplicit], [audit.CauseExpired] or [audit.CauseRevoked], see [audit.CauseOf]. Release does
// not change a tenure whose end is recorded, for example because a newer token had reached the resource, and ignores
// one that is not in the trail. It affects the trail only: the mark stays, and the token remains valid.
func (m *Marks) Release(ctx context.Context, db DB, resource string, cause audit.Cause) error {
	return m.made().Release(ctx, db, resource, cause)
}

// LogRefusal records a refusal by [Marks.Check], [Marks.CheckShared], [Marks.CheckPath] or [Marks.UpdateRow] in the
// audit trail. Call it after the refused transaction was rolled back. Claim and Do record their refusals themselves.
// For nil, for an error without a [*fence.StaleError] and for the refusal of a reader, LogRefusal sends nothing. ctx is
// that of the refused call, or made from it: it has the holder's name.
func (m *Marks) LogRefusal(ctx context.Context, db DB, err error) error {
	return m.made().LogRefusal(ctx, db, err)
}

// History returns the tenures that overlap the time of the query and the refusals in it, both with the oldest first.
// The times are those of the database's clock.
//
// It reads the two tables one after the other. The error names the fault of the query, matches [ErrNoTable] if a table
// is missing, or is the server's.
func (m *Marks) History(ctx context.Context, db DB, q Query) ([]audit.Tenure, []audit.Refusal, error) {
	return m.made().History(ctx, db, sqlmark.Query(q))
}
