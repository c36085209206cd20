package sqlmark

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/internal/clip"
)

const (
	defaultLimit = 1000
	maxLimit     = 100_000
)

// Query selects rows of an audit trail.
type Query struct {
	Resource     string    // empty for all
	Since, Until time.Time // zero for no bound
	Limit        int       // of tenures and of refusals each, the newest; default 1000
}

// Release records the end of the tenure of ctx's token.
func (e *Engine[D, T]) Release(ctx context.Context, db D, resource string, cause audit.Cause) error {
	c, err := e.admit(ctx, resource, Writer)
	if err != nil {
		return err
	}
	if err := e.fitTrail(db); err != nil {
		return err
	}
	if cause != audit.CauseExplicit && cause != audit.CauseExpired && cause != audit.CauseRevoked {
		return fmt.Errorf("%s: release %q: cause is %s, want %s, %s or %s",
			e.pkg, resource, clip.Quote(string(cause)), audit.CauseExplicit, audit.CauseExpired, audit.CauseRevoked)
	}
	return e.retry(ctx, func() error {
		err := e.within(ctx, db, func(tx Conn) error {
			_, err := tx.Exec(ctx, e.trail.release, string(cause), resource, int64(c.Token))
			return err
		})
		return e.explain("release", resource, err)
	})
}

// LogRefusal records the refusal in err, if there is one.
func (e *Engine[D, T]) LogRefusal(ctx context.Context, db D, err error) error {
	if err := e.fitTrail(db); err != nil {
		return err
	}
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || stale.Read {
		return nil
	}
	if err := e.checkResource("StaleError.Resource", stale.Resource); err != nil {
		return err
	}
	return e.retry(ctx, func() error { return e.explain("log refusal", stale.Resource, e.record(ctx, db)(stale)) })
}

// fitTrail returns an error if the engine or the pool cannot be used, or if there is no audit trail.
func (e *Engine[D, T]) fitTrail(db D) error {
	if err := e.fit(db); err != nil || e.trail != nil {
		return err
	}
	return fmt.Errorf("%s: there is no audit trail: Options.Log is empty, want a table such as %q", e.pkg, DefaultLog)
}

// record returns a function that writes a refusal to the audit trail in a separate transaction.
func (e *Engine[D, T]) record(ctx context.Context, db D) func(*fence.StaleError) error {
	return func(stale *fence.StaleError) error {
		return e.within(ctx, db, func(tx Conn) error { return e.trail.stale(ctx, tx, stale) })
	}
}

// refused returns stale, the refusal by a mark or nil. If there is an audit trail, record first writes a writer's
// refusal to it.
func (e *Engine[D, T]) refused(verb, resource string, stale error, record func(*fence.StaleError) error) error {
	refusal, ok := errors.AsType[*fence.StaleError](stale)
	if e.trail == nil || !ok || refusal.Read {
		return stale
	}
	if err := record(refusal); err != nil {
		return errors.Join(stale, e.explain(verb, resource, fmt.Errorf("refused, but not recorded in the audit trail: %w", err)))
	}
	return stale
}

// History returns the tenures that overlap the time of the query and the refusals in it, both with the oldest first.
func (e *Engine[D, T]) History(ctx context.Context, db D, q Query) (tenures []audit.Tenure, refusals []audit.Refusal, err error) {
	if err := e.fitTrail(db); err != nil {
		return nil, nil, err
	}
	switch {
	case q.Limit < 0 || q.Limit > maxLimit:
		return nil, nil, fmt.Errorf("%s: history: Query.Limit is %d, want 0 for %d, or 1 to %d", e.pkg, q.Limit, defaultLimit, maxLimit)
	case !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until):
		return nil, nil, fmt.Errorf("%s: history: Query.Since is %s, want a time before Query.Until, %s", e.pkg, q.Since, q.Until)
	}
	q.Limit = cmp.Or(q.Limit, defaultLimit)
	if q.Resource != "" {
		if err := e.checkResource("Query.Resource", q.Resource); err != nil {
			return nil, nil, err
		}
	}
	rows := func(scan func(Scanner) error, query string, args ...any) error {
		return e.inside(ctx, db, func(tx T) error { return e.lib.Rows(ctx, tx, scan, query, args...) })
	}
	err = e.retry(ctx, func() (err error) {
		if tenures, err = e.trail.readTenures(rows, q); err == nil {
			refusals, err = e.trail.readRefusals(rows, q)
		}
		return e.explain("history", q.Resource, err)
	})
	if err != nil {
		return nil, nil, err
	}
	slices.Reverse(tenures)
	slices.Reverse(refusals)
	return tenures, refusals, nil
}

// rows calls scan for each row of a query.
type rows func(scan func(Scanner) error, query string, args ...any) error

func (l *trail) readTenures(from rows, q Query) (all []audit.Tenure, err error) {
	where := conditions{trail: l}
	where.add(q.Resource != "", l.key+" = %s", q.Resource)
	where.time(q.Since, "(released_at IS NULL OR released_at >= %s)")
	where.time(q.Until, "granted_at < %s")
	query := l.tenures + where.String() + fmt.Sprintf(" ORDER BY granted_at DESC, token DESC LIMIT %d", q.Limit)
	err = from(func(row Scanner) error {
		var t audit.Tenure
		var ttl int64
		var granted, released string
		err := row.Scan(&t.Resource, &t.Token, &t.Holder.Name, &ttl, &granted, &released, &t.Cause)
		if err != nil {
			return err
		}
		t.Holder.TTL = time.Duration(ttl) * time.Millisecond
		var errGranted, errReleased error
		t.Granted, errGranted = l.parse(granted)
		t.Released, errReleased = l.parse(released)
		all = append(all, t)
		return errors.Join(errGranted, errReleased)
	}, query, where.args...)
	return all, err
}

func (l *trail) readRefusals(from rows, q Query) (all []audit.Refusal, err error) {
	where := conditions{trail: l}
	where.add(q.Resource != "", l.key+" = %s", q.Resource)
	where.time(q.Since, "refused_at >= %s")
	where.time(q.Until, "refused_at < %s")
	query := l.refusals + where.String() + fmt.Sprintf(" ORDER BY id DESC LIMIT %d", q.Limit)
	err = from(func(row Scanner) error {
		var r audit.Refusal
		var at string
		err := row.Scan(&r.Resource, &r.Token, &r.Highest, &r.Holder.Name, &at)
		if err != nil {
			return err
		}
		r.At, err = l.parse(at)
		all = append(all, r)
		return err
	}, query, where.args...)
	return all, err
}

// conditions is a WHERE clause.
type conditions struct {
	trail *trail
	list  []string
	args  []any
}

// add adds a condition, with %s for its argument.
func (c *conditions) add(wanted bool, condition string, arg any) {
	if wanted {
		c.args = append(c.args, arg)
		c.list = append(c.list, fmt.Sprintf(condition, c.trail.dialect.placeholder(len(c.args))))
	}
}

func (c *conditions) time(t time.Time, condition string) {
	c.add(!t.IsZero(), fmt.Sprintf(condition, c.trail.at), t.UTC().Format(c.trail.layout))
}

func (c *conditions) String() string {
	if len(c.list) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(c.list, " AND ")
}
