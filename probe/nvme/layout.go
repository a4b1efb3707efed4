package nvme

// Field says where a field of the Identify Controller data structure lies: its
// name in the specification, in lower case as nvme-cli prints it, the offset
// of its first byte and the number of bytes.
type Field struct {
	Name         string
	Offset, Size int
}

// End returns the number of bytes that hold the field.
func (f Field) End() int { return f.Offset + f.Size }

// Layout returns the fields that ParseIdentifyController decodes, in the
// specification's order.
func Layout() []Field {
	return []Field{
		{"vid", icVID, 2},
		{"ssvid", icSSVID, 2},
		{"sn", icSN, icMN - icSN},
		{"mn", icMN, icFR - icMN},
		{"fr", icFR, icRAB - icFR},
		{"rab", icRAB, 1},
		{"ieee", icIEEE, icCMIC - icIEEE},
		{"cmic", icCMIC, 1},
		{"mdts", icMDTS, 1},
		{"cntlid", icCNTLID, 2},
		{"ver", icVER, 4},
		{"oaes", icOAES, 4},
		{"ctratt", icCTRATT, 4},
		{"oacs", icOACS, 2},
		{"frmw", icFRMW, 1},
		{"apsta", icAPSTA, 1},
		{"nn", icNN, 4},
		{"oncs", icONCS, 2},
		{"vwc", icVWC, 1},
		{"sgls", icSGLS, 4},
		{"subnqn", icSUBNQN, icSUBNQNEnd - icSUBNQN},
	}
}
