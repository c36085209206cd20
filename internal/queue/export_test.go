package queue

// For the tests, which stand outside.
var (
	Contends = contends
	Stray    = stray
)
