package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Persist is a file that enforce installed so that a limit outlives the boot.
type Persist struct {
	File   string // absolute path
	SHA256 string // of its content, 64 lower-case hex digits
	Time   time.Time
	Quirks []string // ids of the entries it serves
	Tool   string   // version of quirkcheck
}

// maxQuirksBytes bounds the list of a file that serves the whole database.
const maxQuirksBytes = 1 << 20

func (p *Persist) check() error {
	if err := checkText("file", p.File, maxValue, true); err != nil {
		return err
	}
	if !filepath.IsAbs(p.File) || filepath.Clean(p.File) != p.File {
		return fmt.Errorf("file %q is not a clean absolute path", p.File)
	}
	if len(p.SHA256) != 64 {
		return fmt.Errorf("SHA-256 %q has not 64 digits", p.SHA256)
	}
	for _, c := range p.SHA256 {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("SHA-256 %q is not lower-case hex", p.SHA256)
		}
	}
	for _, q := range p.Quirks {
		if err := checkText("quirk", q, maxText, true); err != nil {
			return err
		}
	}
	if p.Time.IsZero() {
		return errors.New("time is missing")
	}
	return checkText("tool", p.Tool, maxShort, false)
}

// fields returns the values of the columns, without crc.
func (p *Persist) fields() ([]any, error) {
	quirks := p.Quirks
	if quirks == nil {
		quirks = []string{}
	}
	list, err := json.Marshal(quirks)
	if err != nil {
		return nil, err
	}
	if len(list) > maxQuirksBytes {
		return nil, fmt.Errorf("the list of quirks has %d bytes, more than %d", len(list), maxQuirksBytes)
	}
	return []any{p.File, p.SHA256, p.Time.UnixMicro(), string(list), p.Tool}, nil
}

// SetPersisted notes that p is about to be installed; when it returns nil the
// note is on the disk. It comes before the file is put in place, so a kill in
// between leaves the file as it was before: notes of earlier contents of the
// same file stay, and a file is ours where its sum is in any of them.
func (s *Store) SetPersisted(ctx context.Context, p Persist) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("note %s: %w", p.File, err)
	}
	fields, err := p.fields()
	if err != nil {
		return fmt.Errorf("note %s: %w", p.File, err)
	}
	return s.update(ctx, "write to", func(tx *sql.Tx) error {
		_, err := tx.StmtContext(ctx, s.setPersisted).ExecContext(ctx, append(fields, sum(fields))...)
		return err
	})
}

// Persisted returns all notes, by file and then oldest first. With a
// *CorruptError for damaged rows come the rows that are whole.
func (s *Store) Persisted(ctx context.Context) ([]Persist, error) {
	rows, err := s.persisted.QueryContext(ctx)
	if err != nil {
		return nil, explain("read", s.path, err)
	}
	defer rows.Close()
	var all []Persist
	var damaged error
	for rows.Next() {
		var p Persist
		var us int64
		var list string
		var crc []byte
		if err := rows.Scan(&p.File, &p.SHA256, &us, &list, &p.Tool, &crc); err != nil {
			return all, explain("read", s.path, err)
		}
		fields := []any{p.File, p.SHA256, us, list, p.Tool}
		if string(crc) != string(sum(fields)) || json.Unmarshal([]byte(list), &p.Quirks) != nil {
			damaged = &CorruptError{Path: s.path, Why: fmt.Sprintf("damaged: the note of file %q does not match its checksum", p.File)}
			continue
		}
		p.Time = time.UnixMicro(us).UTC()
		all = append(all, p)
	}
	if err := rows.Err(); err != nil {
		return all, explain("read", s.path, err)
	}
	return all, damaged
}

// ForgetPersisted drops all notes of a file, after it was removed or found to
// be somebody else's. There being none is no error.
func (s *Store) ForgetPersisted(ctx context.Context, file string) error {
	return s.update(ctx, "write to", func(tx *sql.Tx) error {
		_, err := tx.StmtContext(ctx, s.forgetPersisted).ExecContext(ctx, file)
		return err
	})
}
