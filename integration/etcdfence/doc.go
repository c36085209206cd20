// Package etcdfence tests fence/etcdfence against real servers: what their answers look like through a fenced KV, each way
// to lose a lock, permissions and limits, and holders who overlap at random. Messages that are lost or late, and what comes
// between two requests, are tested in fake time beside the code.
package etcdfence
