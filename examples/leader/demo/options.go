package demo

// Options of the demo.
type Options struct {
	NoFence bool // the ledger does not look at tokens
	Verbose bool // show every write
}
