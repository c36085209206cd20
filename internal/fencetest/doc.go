// Package fencetest has the tests that every fence has to pass: [Wire] those of the protocols that carry a token, and those of the
// stores: [Rules] and [Refuse] for what each verb makes of marks and tokens, [Random] and [Grants] for what holders make of each other.
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
//   - What a reader has read and then checked is every entry of older tokens that is there at the end, and none of newer ones.
//   - The holder of another lock, whose token is higher, is refused by everything, and refuses nobody.
//
// # Grants
//
// Histories of one read/write lock, at random: readers and writers are granted in the order of their tokens, and a reader does
// not pass a writer that waits. Holders unlock, or lose the lock while they are paused and still act. Each claims early, late
// or never, and then reads or writes. The calls come one after the other, so that each has one right answer:
//
//   - A live holder is never refused.
//   - A writer is refused once the resource has accepted a newer holder, a reader once it has accepted a newer writer. Nobody
//     else is.
//   - The refusal says which token and which mark it was.
//   - A verb that writes finds no token in the context of a reader, nor a verb that reads in that of a writer.
package fencetest
