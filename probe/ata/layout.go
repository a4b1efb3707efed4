package ata

// Field says which words of IDENTIFY DEVICE data a value comes from: a name, the
// words as the standard writes them, and the number of words from the first
// on without which the value is not known.
type Field struct {
	Name, Words string
	Need        int
}

// Layout returns the values that ParseIdentify decodes, by the name of the field
// or method of Identify, with their words.
func Layout() []Field {
	return []Field{
		{"ATAPI", "word 0", 1},
		{"Serial", "words 10-19", 20},
		{"Firmware", "words 23-26", 27},
		{"Model", "words 27-46", 47},
		{"QueueDepth", "words 75-76", wordSATA + 1},
		{"NCQ", "word 76", wordSATA + 1},
		{"NativeSATA", "words 80, 93", wordHardwareReset + 1},
		{"LBA48", "words 49, 83, 100-103", wordLBA48Sectors + 4},
		{"Sectors", "words 49, 60-61, 83, 100-103", wordLBA48Sectors + 4},
		{"WWN", "words 87, 108-111", 112},
		{"LogicalSectorBytes", "words 106, 117-118", wordLogicalSector + 2},
		{"PhysicalSectorBytes", "words 106, 117-118", wordLogicalSector + 2},
		{"TRIM", "words 80, 169", wordDataSetManage + 1},
		{"DRAT", "words 69, 80, 169", wordDataSetManage + 1},
		{"RZAT", "words 69, 80, 169", wordDataSetManage + 1},
		{"Rotation", "word 217", 218},
		{"ChecksumState", "word 255", wordIntegrity + 1},
	}
}
