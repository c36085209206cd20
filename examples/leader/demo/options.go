package demo

// Options of the demo.
type Options struct {
	Manual  bool // a person plays, until Ctrl-C
	NoFence bool // the ledger does not look at tokens
	Verbose bool // show every write
}
