package store

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strings"
)

// applicationID marks the file as ours ("qkst"; SQLite, PRAGMA application_id).
const applicationID = 0x716b7374

// migrations returns the statements that make each version of the schema from
// the one before; the first makes version 1 from an empty file. A published
// step never changes: the schema of a file is compared with what they make.
func migrations() []string {
	return []string{`
CREATE TABLE writes (
	id          INTEGER PRIMARY KEY,
	boot_id     TEXT NOT NULL,
	device      TEXT NOT NULL,
	identity    TEXT NOT NULL,
	diskseq     INTEGER, -- the bits of a 64-bit number; NULL: the kernel has none
	attr        TEXT NOT NULL,
	old         TEXT NOT NULL,
	new         TEXT NOT NULL,
	was_default INTEGER NOT NULL CHECK (was_default IN (0, 1)),
	quirk       TEXT NOT NULL,
	tool        TEXT NOT NULL,
	time_us     INTEGER NOT NULL, -- microseconds since 1970, UTC
	run         TEXT NOT NULL,
	state       TEXT NOT NULL CHECK (state IN ('planned', 'written', 'not-written', 'reverted', 'foreign', 'gone')),
	read_back   TEXT NOT NULL,
	room        BLOB NOT NULL, -- keeps the row's size when state and read_back change
	crc         BLOB NOT NULL  -- CRC-32 of all columns but room
) STRICT;
CREATE TABLE persisted (
	file    TEXT NOT NULL,
	sha256  TEXT NOT NULL,
	time_us INTEGER NOT NULL,
	quirks  TEXT NOT NULL, -- JSON array of ids
	tool    TEXT NOT NULL,
	crc     BLOB NOT NULL,
	PRIMARY KEY (file, sha256)
) STRICT, WITHOUT ROWID;
`}
}

// querier is a *sql.DB, *sql.Conn or *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// objects lists what the schema of q holds, as SQLite keeps it.
func objects(ctx context.Context, q querier) ([]string, error) {
	rows, err := q.QueryContext(ctx, `SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var f [4]string
		if err := rows.Scan(&f[0], &f[1], &f[2], &f[3]); err != nil {
			return nil, err
		}
		all = append(all, strings.Join(f[:], "\x00"))
	}
	slices.Sort(all)
	return all, rows.Err()
}

// want lists what the schema holds after steps.
func want(ctx context.Context, steps []string) ([]string, error) {
	db := sql.OpenDB(&connector{dsn: ":memory:"})
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection would be a database of its own
	for _, step := range steps {
		if _, err := db.ExecContext(ctx, step); err != nil {
			return nil, fmt.Errorf("schema: %w", err)
		}
	}
	return objects(ctx, db)
}

// version returns the schema's version, 0 for an empty file.
func version(ctx context.Context, q querier) (int, error) {
	var v int
	err := q.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&v)
	return v, err
}

// examine looks for damage and returns the schema's version, 0 for an empty
// file. It writes nothing, but SQLite finishes the rollback of a transaction
// that a crash interrupted.
func (s *Store) examine(ctx context.Context, steps []string) (int, error) {
	q, err := s.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer q.Close()
	// In a transaction nobody else changes the schema between the questions.
	if _, err := q.ExecContext(ctx, `BEGIN DEFERRED`); err != nil {
		return 0, err
	}
	defer q.ExecContext(ctx, `ROLLBACK`)
	path := s.path

	v, err := version(ctx, q)
	if err != nil {
		return 0, err
	}
	var app int64
	if err := q.QueryRowContext(ctx, `PRAGMA application_id`).Scan(&app); err != nil {
		return 0, err
	}
	if app == applicationID && v > len(steps) {
		return 0, &CorruptError{Path: path, Newer: true,
			Why: fmt.Sprintf("written by a newer quirkcheck (version %d of the schema; this one knows %d)", v, len(steps))}
	}
	have, err := objects(ctx, q)
	if err != nil {
		return 0, err
	}
	if v == 0 && app == 0 && len(have) == 0 {
		return 0, nil
	}
	if app != applicationID {
		return 0, &CorruptError{Path: path, Why: "an SQLite database that is not quirkcheck's, or whose header is damaged"}
	}
	if v < 1 {
		return 0, &CorruptError{Path: path, Why: fmt.Sprintf("damaged: its schema has the version %d", v)}
	}
	// SQLite reads what is missing of the last page as zeros.
	var pageBytes int64
	if err := q.QueryRowContext(ctx, `PRAGMA page_size`).Scan(&pageBytes); err != nil {
		return 0, err
	}
	if fi, err := os.Stat(s.file); err != nil {
		return 0, err
	} else if fi.Size()%pageBytes != 0 {
		return 0, &CorruptError{Path: path, Why: fmt.Sprintf("damaged: its %d bytes are no whole number of pages", fi.Size())}
	}
	var fault string
	if err := q.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&fault); err != nil {
		return 0, err
	}
	if fault != "ok" {
		return 0, &CorruptError{Path: path, Why: "damaged: " + strings.Join(strings.Fields(fault), " ")}
	}
	wanted, err := want(ctx, steps[:v])
	if err != nil {
		return 0, err
	}
	if !slices.Equal(have, wanted) {
		return 0, &CorruptError{Path: path, Why: "damaged: its tables are not those that quirkcheck makes"}
	}
	return v, nil
}

// migrate brings the schema of an examined file to the newest version, in one
// transaction.
func migrate(ctx context.Context, db *sql.DB, steps []string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	v, err := version(ctx, tx) // another process may have been faster
	if err != nil {
		return err
	}
	if v >= len(steps) {
		return nil
	}
	for _, step := range steps[v:] {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return err
		}
	}
	// A pragma takes no parameters.
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA user_version = %d; PRAGMA application_id = %d`, len(steps), applicationID)); err != nil {
		return err
	}
	return tx.Commit()
}
