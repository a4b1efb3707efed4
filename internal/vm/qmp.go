package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
)

// QMPError is QEMU's refusal of a command.
type QMPError struct {
	Command     string
	Class, Desc string
}

func (e *QMPError) Error() string { return fmt.Sprintf("qmp %s: %s", e.Command, e.Desc) }

// A qmpEvent is an event of QEMU; Data depends on it.
type qmpEvent struct {
	Name string
	Data json.RawMessage
}

// qmp is a connection to QEMU's monitor (QEMU, docs/interop/qmp-spec).
type qmp struct {
	conn   net.Conn
	mu     sync.Mutex // one command at a time
	answer chan qmpAnswer
	gone   chan struct{} // closed at the end of the connection

	evMu   sync.Mutex
	events []qmpEvent
	more   chan struct{} // closed and replaced at each event
}

type qmpAnswer struct {
	Return json.RawMessage `json:"return"`
	Error  *struct{ Class, Desc string }
	Event  string          `json:"event"`
	Data   json.RawMessage `json:"data"`
}

func newQMP(c net.Conn) *qmp {
	q := &qmp{conn: c, answer: make(chan qmpAnswer, 1), gone: make(chan struct{}), more: make(chan struct{})}
	go q.read()
	return q
}

func (q *qmp) read() {
	defer close(q.gone)
	r := bufio.NewReader(q.conn)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var a qmpAnswer
		if json.Unmarshal(line, &a) != nil {
			continue
		}
		switch {
		case a.Event != "":
			q.evMu.Lock()
			q.events = append(q.events, qmpEvent{a.Event, a.Data})
			close(q.more)
			q.more = make(chan struct{})
			q.evMu.Unlock()
		case a.Return != nil || a.Error != nil:
			select {
			case q.answer <- a:
			default: // nobody waits any more
			}
		} // else the greeting
	}
}

var errMonitorGone = errors.New("QEMU closed its monitor")

func (q *qmp) do(ctx context.Context, command string, args any) (json.RawMessage, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-q.answer: // the late answer of a command that was given up
	default:
	}
	msg := map[string]any{"execute": command}
	if args != nil {
		msg["arguments"] = args
	}
	b, err := json.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("qmp %s: %w", command, err)
	}
	if _, err := q.conn.Write(append(b, '\n')); err != nil {
		return nil, fmt.Errorf("qmp %s: %w", command, errMonitorGone)
	}
	select {
	case a := <-q.answer:
		return a.result(command)
	case <-q.gone:
		select {
		case a := <-q.answer: // its last words
			return a.result(command)
		default:
			return nil, fmt.Errorf("qmp %s: %w", command, errMonitorGone)
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("qmp %s: %w", command, ctx.Err())
	}
}

func (a qmpAnswer) result(command string) (json.RawMessage, error) {
	if a.Error != nil {
		return nil, &QMPError{command, a.Error.Class, a.Error.Desc}
	}
	return a.Return, nil
}

// mark is a place in the list of events, to wait from.
func (q *qmp) mark() int {
	q.evMu.Lock()
	defer q.evMu.Unlock()
	return len(q.events)
}

// wait returns the first event after mark for which ok holds.
func (q *qmp) wait(ctx context.Context, mark int, ok func(qmpEvent) bool) (qmpEvent, error) {
	for gone := false; ; {
		q.evMu.Lock()
		events, more := q.events[mark:], q.more
		q.evMu.Unlock()
		for _, e := range events {
			mark++
			if ok(e) {
				return e, nil
			}
		}
		if gone {
			return qmpEvent{}, errMonitorGone
		}
		select {
		case <-more:
		case <-q.gone: // an event may have come just before
			gone = true
		case <-ctx.Done():
			return qmpEvent{}, ctx.Err()
		}
	}
}
