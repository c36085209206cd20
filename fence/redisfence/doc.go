// Package redisfence keeps a holder that has lost its lock from writing to Redis, Valkey or another server that runs
// their Lua scripts. It uses github.com/redis/go-redis/v9.
//
// # Scope
//
// [Marks] keep one mark for each resource: the highest token that was accepted, in a key on the server that has the
// data. The script that writes also compares the mark. A resource is whatever one lock protects. The verbs are those of
// package fence. A holder calls [Marks.Claim] once, before its first read, and writes with [Marks.Do], [Marks.Set], or
// [Marks.Run] for its own Lua. [Marks.Check] only refuses early.
//
// The token is the one in the context, see [fence.FromContext]. A lock's context carries its token. The holder of a
// read lock calls [Marks.ClaimRead] before its first read, which keeps a paused writer from writing while it reads, and
// [Marks.CheckRead] after a read, before the result is used; see package fence.
//
// The resource follows one lock: that of the first claim or write, of a writer or a reader, whose context carries a
// lock's name. [Marks.Move] makes it follow another lock.
//
// # Guarantee
//
// On one server that keeps its data: once a Claim or a write with a token was accepted for a resource, no older token
// is accepted for it. Once a ClaimRead or CheckRead was accepted, no older token of a writer is accepted. Once any of
// these was accepted with a lock's name, no token of another lock is accepted until Move. The comparison, the raised
// mark and the writes are one script, which Redis runs atomically. This needs no clock. It holds for any number of
// processes, any pause and any delay of a write, and is exact for every token, 1 to 9223372036854775807.
//
// # No guarantee
//
// Redis replicates after it has answered, so this fence is weaker than those of the other stores.
//
//   - An asynchronous fail-over loses the last writes and marks that the promoted replica did not receive. Without the
//     mark the new primary accepts a stale holder, or the holder of another lock, until the rightful holder writes or
//     claims there. A primary that is cut off also accepts writes and drops them when it becomes a replica.
//     On the server, min-replicas-to-write bounds how long a primary that is cut off accepts writes. Redis's WAIT does
//     not help: it undoes nothing and does not determine which replica is promoted.
//   - A restart loses data that was not on disk: set appendonly yes, appendfsync always and no-appendfsync-on-rewrite
//     no. A restore from a backup brings back old marks and, if it undoes a Move, the former lock: claim or move again
//     before anything is written.
//   - Marks must not be evicted: set maxmemory-policy noeviction. Marks have no expiry. Never set one and never delete
//     a mark; FLUSHDB deletes them all. [Marks.Probe] reports unsafe settings.
//   - Writes that do not go through the fence are not refused. Reads are not fenced; a CheckRead after a read shows
//     whether it was in time. Read at the primary: a replica may have old data.
//   - A mark shows which holder came later, not who holds the lock. Until a successor has claimed, a holder that has
//     lost its lock is accepted.
//   - A proxy that distributes keys over servers, as redis.Ring does in the client, separates marks from the data.
//   - A proxy may answer with an error of its own although the server ran the script. That looks like the server's
//     error, and does not match ErrUnknown.
//
// If a stale write must never be accepted, keep the mark in a store with consensus: see fence/etcdfence and
// fence/sqlfence.
//
// # Keys and clusters
//
// The mark of the resource orders is at fence:{orders}. In a cluster a script can use keys of one hash slot only. The
// braces put the mark into the slot of the key "orders" and of every key that contains {orders}, such as {orders}:7. If
// the resource is one key, use the key's name as the resource. The server refuses a key in another slot, and the error
// says so. While the slot is moved to another server, a call whose keys do not all exist on one of the two gets
// TRYAGAIN. Without a cluster every key is allowed.
//
// The value is the write mark, or 0 if no writer has come, a space, and the mark of readers, or 0 if that is not higher.
// If the resource follows a lock, a space and the lock's name come last: "54 0 prod/accounts".
//
// # Failures
//
//	what happens                                   what the caller gets               the data
//	a mark is newer than the token                 *fence.StaleError with the mark    unchanged
//	write delayed on its way until then            *fence.StaleError                  unchanged
//	server does not know the script                no error: the script is sent       as without the fence
//	command of Do fails                            *OpError                           changed by the commands before it
//	body of Run fails                              the server's error, or the body's  changed up to the failure
//	server refuses (READONLY, OOM, NOREPLICAS)     the server's error                 unchanged
//	key in another slot                            an error with the slot's keys      unchanged, if keys are declared
//	slot is being moved, only some keys are there  the server's TRYAGAIN              unchanged
//	answer lost, connection lost, ctx ended        ErrUnknown                         as with the answer, or unchanged
//	token of another lock than the mark's          *fence.OtherLockError              unchanged
//	token without a name, the mark has one         the same without AllowUnnamed      unchanged
//	no token in the context                        fence.ErrInvalidToken              unchanged, nothing sent
//	resource empty, too long or with braces        an error with the legal form       unchanged, nothing sent
//	caller's key has the prefix of the marks       an error with the prefix           unchanged, nothing sent
//	something else has written the mark            ErrMalformedMark                   unchanged until the mark is repaired
//	mark deleted, evicted or lost in a fail-over   success, for old tokens too        unfenced until a holder claims
//
// # A lost answer
//
// The client repeats a command MaxRetries times if it gets no answer. This package prevents that. After ErrUnknown,
// repeat a claim, a move or a check. Repeat Do, Set or Run only if its commands are idempotent: SET is, INCR is not.
// Otherwise no read under the same token settles the outcome, because the script may still be under way and run after
// the read. Release the lock, acquire it again and claim with the new token. The server then refuses the old script,
// and a read shows the outcome.
//
// The client's options bound the time of a call. The end of a context ends the client's wait for a connection and
// between two attempts. A request is interrupted only with ContextTimeoutEnabled, and only by the context's deadline.
//
// # Cost
//
// A call costs one round trip, as without the fence, and a short script on the server: a GET and, except for Check, a
// SET of the mark.
//
// # Permissions
//
// A user needs EVALSHA, EVAL, GET and SET, and the commands of its own, for the keys of the marks and of its data. Probe
// needs INFO.
package redisfence
