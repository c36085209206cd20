// Package fencetest has the tests that every fence has to pass: [Wire] those of the protocols that carry a token, and [Random]
// that of the stores.
//
// # Random
//
// Holders of one resource overlap: each has a token of its own and several goroutines, which claim and write in all the
// forms of the store, and whose calls are cancelled at random. A write appends an entry and reports which entries it
// read under its guard. At the end the entries that are there tell whether the fence has held:
//
//   - A write that was answered with success is there; one that was refused, or never came to append, is not.
//   - A write has read every entry of older tokens that is there at the end, and none of newer ones. So nothing older
//     was written once it had read.
//   - A write has read every entry of its own token that was acknowledged before it began.
//   - Of two writes of one token that run alone, one has read the other.
//   - A write that settles unknown outcomes has read every entry of its own token that is there and was given up before
//     it began.
package fencetest
