package queue

// For the tests, which stand outside.
var Stray = stray
