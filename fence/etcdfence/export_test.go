package etcdfence

// For tests of the mark's form.
var (
	Format = format
	Parse  = parse
)
