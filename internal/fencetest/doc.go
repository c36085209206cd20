// Package fencetest has the tests that every fence must pass. [Wire] tests the protocols that carry a token. [Rules]
// and [Refuse] test how each verb of a store treats marks and tokens, by itself and while another holder acts. [Grants]
// plays histories of a read/write lock. [Random] tests a store with many holders.
//
// # Random
//
// Holders of one resource overlap. Each has its own token and several goroutines, which claim and write in all forms of
// the store; their calls are cancelled at random. A write appends an entry and reports which entries it read under its
// guard. The entries that are there at the end show whether the fence worked:
//
//   - The entry of a write that succeeded is there; that of a write that was refused, or never appended, is not.
//   - A write has read every entry of older tokens that is there at the end, and no entry of newer ones. So nothing
//     older was written after its read.
//   - A write has read every entry of its own token that was acknowledged before it began.
//   - Of two writes of one token that run alone, one has read the other.
//   - A write that settles unknown outcomes has read every entry of its own token that is there and whose write was
//     given up before it began.
//   - A reader that has read and then checked has read every entry of older tokens that is there at the end, and no
//     entry of newer ones.
package fencetest
