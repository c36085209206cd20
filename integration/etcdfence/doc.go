// Package etcdfence tests fence/etcdfence against real servers: permissions and limits, and holders who overlap at
// random. The answers through a fenced KV, lost and late messages, and what happens between two requests are tested in
// fake time beside the code.
package etcdfence
