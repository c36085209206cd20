package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// Readers and writers overlap in all forms, through both libraries, at all levels of the store and in all of pgx's
// modes at once, with an audit trail. Their calls are cancelled at random.
func TestMarks_random(t *testing.T) {
	all := append([]place(nil), places...)
	for mode := pgx.QueryExecModeCacheStatement; mode <= pgx.QueryExecModeSimpleProtocol; mode++ {
		for level := sql.LevelReadUncommitted; level <= sql.LevelSerializable; level++ {
			if level != sql.LevelWriteCommitted && level != sql.LevelSnapshot && int(mode)%4 == int(level)%4 {
				all = append(all, place{dialect: sqlfence.PostgreSQL, level: level, pgx: true, mode: mode})
			}
		}
	}
	for _, one := range each {
		t.Run(one.dialect.String(), func(t *testing.T) {
			s := fencetest.Store{Again: again}
			first := newRig(t, one)
			first.db.SetMaxIdleConns(24)
			first.must(t, "CREATE TABLE entries (resource VARCHAR(64), id BIGINT, token BIGINT, PRIMARY KEY (resource, id))")
			for _, p := range all {
				if p.dialect != one.dialect || p.journal != one.journal {
					continue
				}
				r := newRigOn(t, p, first.store)
				if !p.pgx {
					r.db = first.db
				}
				audited(t, r)
				for _, how := range forms {
					s.Forms = append(s.Forms, r.appendAs(how))
				}
				s.Claims = append(s.Claims, r.claim)
				s.Reads, s.ClaimRead = append(s.Reads, r.readTwice()), r.claimRead
				s.Entries = func(ctx context.Context, resource string) (got []fencetest.Entry, err error) {
					err = r.do(ctx, resource, func(ctx context.Context, tx conn) error {
						got, err = r.entries(ctx, tx, resource)
						return err
					})
					return got, err
				}
			}
			fencetest.Random(t, s)
		})
	}
}

func again(err error) bool {
	return transient(err) || errors.Is(err, sqlfence.ErrUnclaimed)
}

// appendAs returns a form in which the rig's fence appends entries.
func (r *rig) appendAs(how form) fencetest.Form {
	f := fencetest.Form{Name: r.String() + ", " + string(how), Settles: how == do || how == check && !r.snapshots()}
	if !how.shared() {
		f.Alone = fmt.Sprint("alone, snapshots ", r.snapshots())
	}
	f.Write = func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
		return r.run(ctx, resource, how, func(ctx context.Context, tx conn) error {
			got, err := r.entries(ctx, tx, resource)
			if err != nil {
				return err
			}
			saw(got)
			return tx.exec(ctx, fmt.Sprintf("INSERT INTO entries VALUES ('%s', %d, %d)", resource, e.ID, e.Token))
		})
	}
	return f
}

var errChanged = errors.New("what was read under CheckRead has changed")

// readTwice returns a form that reads twice under the rig's fence and compares the results.
func (r *rig) readTwice() fencetest.Form {
	return fencetest.Form{
		Name: r.String() + ", CheckRead",
		Write: func(ctx context.Context, resource string, _ fencetest.Entry, saw func([]fencetest.Entry)) error {
			return r.run(ctx, resource, checkRead, func(ctx context.Context, tx conn) error {
				first, err := r.entries(ctx, tx, resource)
				if err != nil {
					return err
				}
				saw(first)
				again, err := r.entries(ctx, tx, resource)
				if err == nil && !slices.Equal(first, again) {
					err = fmt.Errorf("%w: %v, then %v", errChanged, first, again)
				}
				return err
			})
		},
	}
}

func (r *rig) entries(ctx context.Context, tx conn, resource string) ([]fencetest.Entry, error) {
	var text string
	if err := tx.scan(ctx, r.list("id", "token", "entries WHERE resource = '"+resource+"'"), &text); err != nil {
		return nil, err
	}
	return fencetest.Entries(text)
}
