package audit

import (
	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// Matrix is every device under several kernels.
type Matrix struct {
	*checker.Report
	From    Kernel      `json:"from"`
	Kernels []Kernel    `json:"kernels"`
	Matrix  []MatrixRow `json:"matrix"`

	worst quirks.Severity // of a new risk, low for a default that rises
}

// MatrixRow is one device; its cells are in the order of Kernels.
type MatrixRow struct {
	Device string `json:"device"`
	Cells  []Cell `json:"cells"`
}

// Cell is a device under a kernel.
type Cell struct {
	Kernel       string          `json:"kernel"`
	MaxSectorsKB *uint64         `json:"max_sectors_kb"`
	Verdict      checker.Verdict `json:"verdict"`
	Class        Class           `json:"class"`
	Certainty    string          `json:"certainty"`
}

// Matrix says what each of several releases makes of the machine.
func (h *Host) Matrix(to []kernel.Release) *Matrix {
	m := &Matrix{Report: h.now, From: kernelOf(h.from), Matrix: make([]MatrixRow, len(h.devices))}
	for i, d := range h.devices {
		m.Matrix[i].Device = d.name
	}
	for _, r := range to {
		k := kernelOf(r)
		all := h.at(r)
		for i, d := range h.devices {
			t := all[d.name]
			c := h.change(d, t, r)
			p := predictedOf(t)
			m.risk(c)
			k.Beyond = k.Beyond || p.Beyond
			m.Matrix[i].Cells = append(m.Matrix[i].Cells, Cell{Kernel: r.Raw, MaxSectorsKB: p.MaxSectorsKB, Verdict: c.VerdictThen, Class: c.Class, Certainty: p.Certainty})
		}
		m.Kernels = append(m.Kernels, k)
	}
	return m
}

func (m *Matrix) risk(c Change) {
	if c.Class == NewRisk && c.Severity.Rank() > m.worst.Rank() {
		m.worst = c.Severity
	}
	if c.rises && m.worst.Rank() < quirks.Low.Rank() {
		m.worst = quirks.Low
	}
}

// Inhibits is Report.Inhibits for devices, under any kernel of the matrix.
func (m *Matrix) Inhibits(at quirks.Severity) bool {
	return at != "" && at != "none" && m.worst.Rank() >= at.Rank()
}
