// Package model compares what keeps marks, fence.Guard and fence/sqlfence on SQLite, with a model that is a map: random
// calls, one after the other and side by side, have to be answered as the model answers them.
//
// A failure is shrunk, and is printed with the flag that repeats it.
package model
