package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/mattn/go-sqlite3"
)

// busyTimeout is how long a statement waits for another process.
const busyTimeout = 5 * time.Second

// maxCopyBytes bounds the copy that OpenReadOnly makes of an interrupted file.
const maxCopyBytes = 256 << 20

// Store is an open state. Its methods may be called from many goroutines.
type Store struct {
	db       *sql.DB
	path     string // as errors name it
	file     string // as it is open: path or a copy
	readOnly bool

	nextID, insert, byID, settle, pending, history *sql.Stmt
	persisted, setPersisted, forgetPersisted       *sql.Stmt
}

// Open opens the state at path for writing, and creates it where there is none:
// the folder with mode 0700, the file with 0600. An empty file counts as none.
//
// Errors: *CorruptError; fs.ErrPermission, also where others than root and the
// caller could have written what revert would write to a device; syscall.EROFS;
// syscall.ENOSPC; ErrBusy. Hint names the next step.
func Open(path string) (*Store, error) { return open(path, migrations()) }

func open(path string, steps []string) (*Store, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	if err := create(path); err != nil {
		return nil, err
	}
	s := newStore(path, path, "rw")
	if err := s.start(context.Background(), steps); err != nil {
		s.db.Close()
		return nil, explain("open", path, err)
	}
	return s, nil
}

// start examines the file, brings its schema up to date and prepares the
// statements.
func (s *Store) start(ctx context.Context, steps []string) error {
	v, err := s.examine(ctx, steps)
	if err != nil {
		return err
	}
	if v < len(steps) {
		if err := migrate(ctx, s.db, steps); err != nil {
			return err
		}
	}
	return s.prepare(ctx)
}

// OpenReadOnly opens the state at path for reading; it writes nothing beside or
// into it, so it works on a read-only mount. Where a crash interrupted a
// transaction, or the schema is old, it reads a copy in the folder for
// temporary files.
//
// Errors: fs.ErrNotExist where there is no state, or an empty one;
// *CorruptError; fs.ErrPermission; ErrBusy.
func OpenReadOnly(path string) (*Store, error) { return openReadOnly(path, migrations()) }

func openReadOnly(path string, steps []string) (*Store, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path); err != nil {
		return nil, err
	}
	if err := syscall.Access(path, canRead); err != nil {
		return nil, fmt.Errorf("open state %s: %w", path, err)
	}
	ctx := context.Background()
	s := newStore(path, path, "ro")
	v, err := s.examine(ctx, steps)
	var lite sqlite3.Error
	switch {
	case errors.As(err, &lite) && lite.ExtendedCode == sqlite3.ErrReadonlyRollback,
		err == nil && v > 0 && v < len(steps):
		s.db.Close()
		return openCopy(path, steps)
	case err == nil && v == 0:
		err = fmt.Errorf("it is empty: %w", fs.ErrNotExist)
	case err == nil:
		err = s.prepare(ctx)
	}
	if err != nil {
		s.db.Close()
		return nil, explain("open", path, err)
	}
	return s, nil
}

// openCopy opens a copy of the file and its journal, where SQLite may roll back.
// The copy is unlinked at once and lives until it is closed.
func openCopy(path string, steps []string) (*Store, error) {
	dir, err := os.MkdirTemp("", "quirkcheck-state-")
	if err != nil {
		return nil, fmt.Errorf("open state %s, which a crash left unfinished, as a copy: %w", path, err)
	}
	defer os.RemoveAll(dir)
	to := filepath.Join(dir, "state.db")
	for _, suffix := range []string{"", "-journal"} {
		err := copyFile(to+suffix, path+suffix)
		if err != nil && !(suffix != "" && errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("open state %s, which a crash left unfinished, as a copy: %w", path, err)
		}
	}
	s := newStore(path, to, "rw")
	s.readOnly = true
	if err := s.start(context.Background(), steps); err != nil {
		s.db.Close()
		return nil, explain("open a copy of", path, err)
	}
	return s, nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.CopyN(out, in, maxCopyBytes)
	switch {
	case errors.Is(err, io.EOF):
		err = nil
	case err == nil && n == maxCopyBytes:
		err = fmt.Errorf("copy %s: larger than %d MiB", from, maxCopyBytes>>20)
	}
	return errors.Join(err, out.Close())
}

func newStore(path, file, mode string) *Store {
	// In the path of a file URI SQLite decodes %HH, so ?, # and % are safe.
	uri := "file:" + (&url.URL{Path: file}).EscapedPath() + "?mode=" + mode + "&_txlock=immediate"
	s := &Store{path: path, file: file, readOnly: mode == "ro"}
	s.db = sql.OpenDB(&connector{dsn: uri, file: true})
	// SQLite has one writer; a second connection would only wait for the first.
	s.db.SetMaxOpenConns(1)
	s.db.SetMaxIdleConns(1)
	return s
}

// connector opens connections without a driver registered by name.
type connector struct {
	dsn  string
	file bool
}

func (c *connector) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

func (c *connector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.Driver().Open(c.dsn)
	if err != nil || !c.file {
		return conn, err
	}
	if err := settings(conn.(*sqlite3.SQLiteConn)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func settings(conn *sqlite3.SQLiteConn) error {
	// A schema or a page that somebody else wrote is input like any other:
	// trusted_schema and cell_size_check (SQLite, "Defense Against The Dark Arts").
	_, err := conn.Exec(fmt.Sprintf(`PRAGMA busy_timeout = %d; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;
		PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY; PRAGMA synchronous = FULL`, busyTimeout.Milliseconds()), nil)
	if err != nil {
		return err
	}
	rows, err := conn.Query(`PRAGMA journal_mode`, nil)
	if err != nil {
		return err
	}
	mode := make([]driver.Value, 1)
	err = rows.Next(mode)
	rows.Close()
	if err != nil {
		return err
	}
	if mode[0] == "wal" {
		// This is in the header. Going on would convert the file.
		return sqlite3.Error{Code: sqlite3.ErrNotADB}
	}
	_, err = conn.Exec(`PRAGMA journal_mode = PERSIST`, nil)
	return err
}

// resolve makes path absolute and follows links, so that all who name a file
// in different ways meet in one lock. What does not exist is only made absolute.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("open state %s: %w", path, err)
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(dir, filepath.Base(abs)), nil
	}
	return abs, nil
}

// regular refuses what is not a plain file. A file is never opened to find
// out: closing it would drop the locks that SQLite holds in this process.
func regular(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return &CorruptError{Path: path, Why: fmt.Sprintf("not a plain file (%s)", fi.Mode().Type())}
	}
	if fi.Size() == 1 {
		// SQLite takes it for empty (sqlite3.c, unixFileSize) and would overwrite it.
		return &CorruptError{Path: path, Why: "damaged: one byte is left of it"}
	}
	return nil
}

// create makes folder and file where there are none, and checks that they can
// be written, and not by anybody.
func create(path string) error {
	if err := createFolder(filepath.Dir(path)); err != nil {
		return fmt.Errorf("create the folder of the state: %w", err)
	}
	// mknod(2) makes a plain file without opening it; see regular.
	err := syscall.Mknod(path, syscall.S_IFREG|0o600, 0)
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("create state %s: %w", path, err)
	}
	if err := regular(path); err != nil {
		return err
	}
	if err := access(path, nil); err != nil {
		return fmt.Errorf("open state %s for writing: %w", path, err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	if fi.Mode()&0o022 != 0 {
		return fmt.Errorf("open state %s: others may write to it (mode %04o, wanted 0600): %w", path, fi.Mode().Perm(), fs.ErrPermission)
	}
	if sys, ok := fi.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("open state %s: it belongs to user %d: %w", path, sys.Uid, fs.ErrPermission)
	}
	return nil
}

// createFolder makes dir where there is none, and syncs the folders that name
// what it made, which SQLite does only for its own files.
func createFolder(dir string) error {
	var in []string // folders that get a new entry, innermost first
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || d == filepath.Dir(d) {
			break
		}
		in = append(in, filepath.Dir(d))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range in {
		f, err := os.Open(d)
		if err != nil {
			return err
		}
		err = f.Sync()
		f.Close()
		if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
			return fmt.Errorf("sync %s: %w", d, err)
		}
	}
	return nil
}

// Path returns the file's path with links followed.
func (s *Store) Path() string { return s.path }

// Close closes the file. A Store is of no use afterwards.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil { // its statements go with it
		return explain("close", s.path, err)
	}
	return nil
}

func (s *Store) prepare(ctx context.Context) error {
	for _, p := range []struct {
		to    **sql.Stmt
		query string
	}{
		{&s.nextID, `SELECT coalesce(max(id), 0) FROM writes`},
		{&s.insert, `INSERT INTO writes (id, ` + columns + `, room, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, zeroblob(?), ?)`},
		{&s.byID, `SELECT id, ` + columns + `, crc FROM writes WHERE id = ?`},
		{&s.settle, `UPDATE writes SET state = ?, read_back = ?, room = zeroblob(?), crc = ? WHERE id = ?`},
		{&s.pending, `SELECT id, ` + columns + `, crc FROM writes WHERE boot_id = ? AND state IN ('planned', 'written') ORDER BY id`},
		{&s.history, `SELECT id, ` + columns + `, crc FROM writes ORDER BY id DESC LIMIT ?`},
		{&s.persisted, `SELECT file, sha256, time_us, quirks, tool, crc FROM persisted ORDER BY file, time_us, sha256`},
		{&s.setPersisted, `INSERT OR REPLACE INTO persisted (file, sha256, time_us, quirks, tool, crc) VALUES (?, ?, ?, ?, ?, ?)`},
		{&s.forgetPersisted, `DELETE FROM persisted WHERE file = ?`},
	} {
		var err error
		if *p.to, err = s.db.PrepareContext(ctx, p.query); err != nil {
			return err
		}
	}
	return nil
}

// update runs do in a transaction that is on the disk when update returns nil.
func (s *Store) update(ctx context.Context, op string, do func(*sql.Tx) error) error {
	if s.readOnly {
		return fmt.Errorf("%s state %s: opened read-only: %w", op, s.path, fs.ErrPermission)
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return explain(op, s.path, err)
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		return explain(op, s.path, err)
	}
	return explain(op, s.path, tx.Commit())
}
