package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// State is how far a write came.
type State string

const (
	Planned    State = "planned"     // about to be written, or killed before the outcome was noted
	Written    State = "written"     // written; ReadBack is what stood there afterwards
	NotWritten State = "not-written" // given up before the write, or refused by the kernel
	Reverted   State = "reverted"    // the old value is back
	Foreign    State = "foreign"     // somebody else changed it since; left alone
	Gone       State = "gone"        // the device is gone, and the value with it
)

// pending tells whether revert has still something to do.
func (s State) pending() bool { return s == Planned || s == Written }

func (s State) valid() bool {
	switch s {
	case Planned, Written, NotWritten, Reverted, Foreign, Gone:
		return true
	}
	return false
}

// Write is one write to one attribute of one device.
type Write struct {
	ID         int64     `json:"id"`
	BootID     string    `json:"boot_id"`     // /proc/sys/kernel/random/boot_id
	Device     string    `json:"device"`      // name in sysfs at that time; another disk may have it now
	Identity   string    `json:"identity"`    // what the device says of itself, the same at every boot
	DiskSeq    uint64    `json:"-"`           // sysfs-block ABI, diskseq: unlike the name never reused in a boot
	HasDiskSeq bool      `json:"-"`           // false: the kernel has none (before 5.15)
	Attr       string    `json:"attr"`        // path relative to /, as fs.ValidPath has it: sys/block/sdb/queue/max_sectors_kb
	Old        string    `json:"old"`         // before, as read, without the newline
	New        string    `json:"new"`         // as it was to be written
	ReadBack   string    `json:"read_back"`   // as read afterwards; "": not read
	WasDefault bool      `json:"was_default"` // Old was the kernel's default, to be restored as such
	Quirk      string    `json:"quirk"`       // id of the entry, or ids
	Tool       string    `json:"tool"`        // version of quirkcheck
	Time       time.Time `json:"time"`
	State      State     `json:"state"`
	Group      string    `json:"run"` // the same for all writes of one run
}

// columns are those of Write except ID, in the order of fields and scan.
const columns = `boot_id, device, identity, diskseq, attr, old, new, was_default, quirk, tool, time_us, run, state, read_back`

// Longest texts, in bytes. A sysfs attribute is one page at most.
const (
	maxShort = 128
	maxText  = 1024
	maxValue = 4096
)

// roomBytes is what a row sets aside for state and read_back. With it Done
// overwrites a row in place: it takes no new page and no larger journal than
// Plan did, and so works on a disk that has filled up in between. It is small
// enough that the lengths of state, read_back and room are one byte each in
// SQLite's record format.
const roomBytes = 60

func (w *Write) room() int { return max(0, roomBytes-len(w.State)-len(w.ReadBack)) }

// check refuses what could not be kept as it is.
func (w *Write) check() error {
	for _, f := range []struct {
		name, text string
		max        int
		required   bool
	}{
		{"boot id", w.BootID, maxShort, true},
		{"device", w.Device, maxText, true},
		{"identity", w.Identity, maxText, true},
		{"attribute", w.Attr, maxText, true},
		{"old value", w.Old, maxValue, false},
		{"new value", w.New, maxValue, false},
		{"quirk", w.Quirk, maxText, false},
		{"tool", w.Tool, maxShort, false},
		{"group", w.Group, maxShort, false},
	} {
		if err := checkText(f.name, f.text, f.max, f.required); err != nil {
			return err
		}
	}
	if !fs.ValidPath(w.Attr) || w.Attr == "." {
		return fmt.Errorf("attribute %q is not a path relative to /", w.Attr)
	}
	if w.Time.IsZero() {
		return errors.New("time is missing")
	}
	return nil
}

func checkText(name, text string, max int, required bool) error {
	switch {
	case required && text == "":
		return fmt.Errorf("%s is missing", name)
	case len(text) > max:
		return fmt.Errorf("%s has %d bytes, more than %d", name, len(text), max)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return fmt.Errorf("%s %q is not plain text", name, text)
	}
	return nil
}

// evidence makes any bytes fit to be kept as what was read back: losing a part
// of it is better than losing that the write happened.
func evidence(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	if len(s) <= maxValue {
		return s
	}
	s = s[:maxValue]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}

// fields returns the values of columns.
func (w *Write) fields() []any {
	var seq any
	if w.HasDiskSeq {
		seq = int64(w.DiskSeq)
	}
	return []any{w.BootID, w.Device, w.Identity, seq, w.Attr, w.Old, w.New, w.WasDefault, w.Quirk, w.Tool,
		w.Time.UnixMicro(), w.Group, string(w.State), w.ReadBack}
}

// sum is a checksum of the row. Four bytes always, unlike an integer.
func (w *Write) sum() []byte { return sum(append([]any{w.ID}, w.fields()...)) }

func sum(fields []any) []byte {
	h := crc32.NewIEEE()
	for _, f := range fields {
		text := fmt.Sprint(f) // NULL is <nil>, which no number is
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(text))))
		h.Write([]byte(text))
	}
	return h.Sum(nil)
}

// scan reads one row of id, columns, crc.
func (s *Store) scan(row interface{ Scan(...any) error }) (Write, error) {
	var w Write
	var seq sql.NullInt64
	var us int64
	var crc []byte
	err := row.Scan(&w.ID, &w.BootID, &w.Device, &w.Identity, &seq, &w.Attr, &w.Old, &w.New, &w.WasDefault, &w.Quirk, &w.Tool,
		&us, &w.Group, &w.State, &w.ReadBack, &crc)
	if err != nil {
		return Write{}, err
	}
	w.DiskSeq, w.HasDiskSeq = uint64(seq.Int64), seq.Valid
	w.Time = time.UnixMicro(us).UTC()
	if string(crc) != string(w.sum()) {
		return Write{}, &CorruptError{Path: s.path, Why: fmt.Sprintf("damaged: write %d does not match its checksum", w.ID)}
	}
	return w, nil
}

// Plan notes that w is about to be written and returns its ID. When it returns
// nil the note is on the disk; only then may the device be touched. ID, State
// and ReadBack of w are ignored, and Time is kept to the microsecond.
//
// Errors: those of Open; one that says what is wrong with a text that is
// missing, too long or not plain text.
func (s *Store) Plan(ctx context.Context, w Write) (id int64, err error) {
	ids, err := s.PlanAll(ctx, []Write{w})
	if err != nil {
		return 0, err
	}
	return ids[0], nil
}

// PlanAll is Plan for many writes in one transaction: all are noted or none.
func (s *Store) PlanAll(ctx context.Context, ws []Write) (ids []int64, err error) {
	for i := range ws {
		if err := ws[i].check(); err != nil {
			return nil, fmt.Errorf("plan write to %q: %w", ws[i].Attr, err)
		}
	}
	err = s.update(ctx, "write to", func(tx *sql.Tx) error {
		var last int64
		if err := tx.StmtContext(ctx, s.nextID).QueryRowContext(ctx).Scan(&last); err != nil {
			return err
		}
		if last < 0 || last > math.MaxInt64-int64(len(ws)) {
			return &CorruptError{Path: s.path, Why: fmt.Sprintf("damaged: the last write has the number %d", last)}
		}
		insert := tx.StmtContext(ctx, s.insert)
		for _, w := range ws {
			last++
			w.ID, w.State, w.ReadBack = last, Planned, ""
			args := append([]any{w.ID}, w.fields()...)
			if _, err := insert.ExecContext(ctx, append(args, w.room(), w.sum())...); err != nil {
				return err
			}
			ids = append(ids, w.ID)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// Done notes what became of a write. A Planned write may come to any other
// state, a Written one may be noted as Written again or come to Reverted,
// Foreign or Gone; the same state again is no error. An empty readBack leaves
// the one that is there; one that is not plain text is made so, and cut at 4096
// bytes.
//
// What happened to a device is noted even where ctx was cancelled meanwhile.
//
// Errors: fs.ErrNotExist for an unknown id, ErrSettled for a write that had
// come to another end, those of Open. It does not fail for want of space where
// readBack has fewer than 49 bytes, on file systems that overwrite in place.
func (s *Store) Done(ctx context.Context, id int64, state State, readBack string) error {
	if !state.valid() || state == Planned {
		return fmt.Errorf("write %d cannot become %q", id, state)
	}
	ctx = context.WithoutCancel(ctx)
	return s.update(ctx, "write to", func(tx *sql.Tx) error {
		w, err := s.scan(tx.StmtContext(ctx, s.byID).QueryRowContext(ctx, id))
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("write %d: %w", id, fs.ErrNotExist)
		}
		if err != nil {
			return err
		}
		if !w.State.pending() && w.State != state || w.State == Written && state == NotWritten {
			return fmt.Errorf("write %d is %s and cannot become %s: %w", id, w.State, state, ErrSettled)
		}
		w.State = state
		if readBack != "" {
			w.ReadBack = evidence(readBack)
		}
		_, err = tx.StmtContext(ctx, s.settle).ExecContext(ctx, string(w.State), w.ReadBack, w.room(), w.sum(), id)
		return err
	})
}

// Pending returns the writes of one boot that are Planned or Written, oldest
// first. With a *CorruptError for damaged rows come the rows that are whole.
func (s *Store) Pending(ctx context.Context, bootID string) ([]Write, error) {
	return s.list(ctx, s.pending, bootID)
}

// History returns the last writes of all boots, newest first; all of them where
// limit is not above 0. With a *CorruptError for damaged rows come the rows
// that are whole.
func (s *Store) History(ctx context.Context, limit int) ([]Write, error) {
	if limit <= 0 {
		limit = -1 // SQLite: no limit
	}
	return s.list(ctx, s.history, limit)
}

func (s *Store) list(ctx context.Context, query *sql.Stmt, arg any) ([]Write, error) {
	rows, err := query.QueryContext(ctx, arg)
	if err != nil {
		return nil, explain("read", s.path, err)
	}
	defer rows.Close()
	var all []Write
	var damaged error
	for rows.Next() {
		w, err := s.scan(rows)
		var corrupt *CorruptError
		switch {
		case err == nil:
			all = append(all, w)
		case errors.As(err, &corrupt):
			if damaged == nil {
				damaged = err
			}
		default:
			return all, explain("read", s.path, err)
		}
	}
	if err := rows.Err(); err != nil {
		return all, explain("read", s.path, err)
	}
	return all, damaged
}
