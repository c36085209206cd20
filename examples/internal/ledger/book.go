package ledger

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// resource is the name of the ledger's mark.
const resource = "ledger"

// schema allows two entries with the same number: only the lock and the fence keep writers apart.
const schema = `CREATE TABLE entries (
	id INTEGER PRIMARY KEY, seq INTEGER, amount INTEGER, balance INTEGER, writer TEXT, token INTEGER)`

// book is the ledger's database.
type book struct {
	dir   string
	db    *sql.DB
	marks *sqlfence.Marks // nil without fencing
}

func openBook(ctx context.Context, fenced bool) (_ *book, err error) {
	b := &book{}
	if b.dir, err = os.MkdirTemp("", "leasefence-ledger-*"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	dsn := "file:" + filepath.ToSlash(filepath.Join(b.dir, "ledger.db")) + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)"
	if b.db, err = sql.Open("sqlite", dsn); err != nil {
		return nil, err
	}
	if _, err = b.db.ExecContext(ctx, schema); err != nil || !fenced {
		return b, err
	}
	if b.marks, err = sqlfence.New(sqlfence.SQLite, sqlfence.Options{}); err != nil {
		return nil, err
	}
	return b, b.marks.Migrate(ctx, b.db)
}

func (b *book) close() error {
	var err error
	if b.db != nil {
		err = b.db.Close()
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

func (b *book) claim(ctx context.Context) error {
	if b.marks == nil {
		return nil
	}
	return b.marks.Claim(ctx, b.db, resource)
}

// insert adds an entry. With a fence, the check of the token and the write are one transaction.
func (b *book) insert(ctx context.Context, token fence.Token, e Entry) error {
	const query = "INSERT INTO entries (seq, amount, balance, writer, token) VALUES (?, ?, ?, ?, ?)"
	args := []any{e.Seq, e.Amount, e.Balance, e.Writer, int64(token)}
	if b.marks == nil {
		_, err := b.db.ExecContext(ctx, query, args...)
		return err
	}
	return b.marks.Do(ctx, b.db, resource, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

// late reports whether there is an entry with a larger token.
func (b *book) late(ctx context.Context, token fence.Token) (late bool, err error) {
	err = b.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM entries WHERE token > ?)", int64(token)).Scan(&late)
	return late, err
}

func (b *book) last(ctx context.Context) (e Entry, err error) {
	err = b.db.QueryRowContext(ctx, "SELECT seq, amount, balance, writer FROM entries ORDER BY id DESC LIMIT 1").
		Scan(&e.Seq, &e.Amount, &e.Balance, &e.Writer)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return e, err
}

func (b *book) entries(ctx context.Context) (all []Attempt, err error) {
	rows, err := b.db.QueryContext(ctx, "SELECT seq, amount, balance, writer, token FROM entries ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var a Attempt
		if err := rows.Scan(&a.Entry.Seq, &a.Entry.Amount, &a.Entry.Balance, &a.Entry.Writer, &a.Token); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, rows.Err()
}
