// Package etcdfence tests fence/etcdfence against real servers: the answers through a fenced KV, permissions and
// limits, and holders who overlap at random. Lost and late messages, and what happens between two requests, are tested
// in fake time beside the code.
package etcdfence
