// Package fencetest has the tests that every fence must pass. [Wire] tests the protocols that carry a token. [Rules]
// and [Refuse] test how each verb of a store treats marks and tokens. [Random] and [Grants] test a store with many
// holders.
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
//   - The holder of another lock, whose token is higher, is refused by every verb, and its calls cause no refusal of
//     others.
//
// # Grants
//
// Random histories of one read/write lock: readers and writers are granted the lock in the order of their tokens, and a
// reader does not pass a writer that waits. Holders unlock, or lose the lock while they are paused and act later. Each
// claims early, late or never, and then reads or writes. The calls come one after the other, so each has one right
// answer:
//
//   - A live holder is never refused.
//   - A writer is refused once the resource has accepted a newer holder, a reader once the resource has accepted a
//     newer writer. Nobody else is refused.
//   - The refusal has the token and the mark.
//   - A verb that writes finds no token in the context of a reader, nor a verb that reads in that of a writer.
package fencetest
