package queue

// For the tests, which stand outside.
var (
	PriorityOf = priorityOf
	Stray      = stray
)
