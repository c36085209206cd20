// Package redisfence keeps a holder that has lost its lock from writing to Redis, Valkey or what else runs their Lua
// scripts, through github.com/redis/go-redis/v9.
//
// # Scope
//
// A [Fence] keeps one mark for each resource, the highest token that has been accepted, in a key of the server that
// has the data, and compares it in the script that writes. A resource is whatever one lock protects. The verbs are
// those of package fence: [Fence.Claim] once a tenure, before its first read, and with every write [Fence.Do], or
// [Fence.Set], or [Fence.Run] for Lua of your own. [Fence.Check] only refuses early.
//
// The token is the one that the context carries, see [fence.FromContext]: a lock's context carries its token.
//
// # Guarantee
//
// On one server that keeps its data: once a token has been accepted for a resource, by a Claim or a write, no older one
// is accepted for it. The comparison, the raised mark and the writes are one script, which Redis runs alone. This needs
// no clock, holds for any number of processes, whatever the pause and however late the write arrives, and is exact for
// every token, 1 to 9223372036854775807.
//
// # No guarantee
//
// This is the weakest of the stores, for Redis replicates after it has answered.
//
//   - An asynchronous fail-over loses what the promoted replica has not got: the last writes, and the last marks. With
//     the mark the fence is lost: a stale holder is accepted by the new primary until the rightful one writes or claims
//     there. So is a write that a primary accepts while it is cut off, and drops when it becomes a replica.
//     Options.WaitReplicas tells a writer whether replicas have its mark. It takes nothing back, and does not say
//     which replica will be promoted: it makes the loss rarer, and is no consensus. On the server's side
//     min-replicas-to-write bounds how long a primary that is cut off goes on accepting.
//   - A restart loses what was not on disk: appendonly yes and appendfsync always keep the marks. A restore from a
//     backup takes them back: claim again before anything is written.
//   - Marks must not be evicted: set maxmemory-policy noeviction. They have no expiry; never give them one, never
//     delete them, and know that FLUSHDB does. [Fence.Probe] reports such settings.
//   - A write without the fence is refused by nobody. Reads are not fenced.
//   - A mark tells who came later, not who holds the lock: until a successor has claimed, a holder that has lost its
//     lock is accepted.
//   - A server in between that spreads keys over servers by itself, as redis.Ring does in the client, leaves the marks
//     behind.
//
// Where a stale write must never be accepted, keep the mark in a store with consensus: see fence/etcdfence and
// fence/sqlfence.
//
// # Keys and clusters
//
// The mark of orders is at fence:{orders}. A script can use only keys of one hash slot in a cluster, and the braces put
// the mark where the key "orders" is, and every key that has {orders} in it, such as {orders}:7. Where one key
// is the resource, its name is the resource's. A key elsewhere is refused by the server, with an error that says so.
// Without a cluster any key will do.
//
// # Failures
//
//	what happens                                   what the caller gets               the data
//	mark is newer than the token                   *fence.StaleError with the mark    unchanged
//	write delayed on its way until then            *fence.StaleError                  unchanged
//	server has forgotten the script                nothing: it is sent, guard and all as ever
//	command of Do fails                            *OpError                           as far as the commands before it
//	body of Run fails                              the server's error                 as far as it came
//	server refuses (READONLY, OOM, NOREPLICAS)     the server's error, or *OpError    unchanged
//	key in another slot                            error that says so                 unchanged, if keys are declared
//	answer lost, connection lost, ctx ended        ErrUnknown                         as a whole, or unchanged
//	too few replicas acknowledge (WaitReplicas)    ErrNotReplicated                   written on the primary
//	no token in the context                        fence.ErrInvalidToken              unchanged, nothing sent
//	resource empty, too long or with braces        error that says so                 unchanged, nothing sent
//	key of the caller's is among the marks         error that says so                 unchanged, nothing sent
//	something else has written the mark            ErrMalformedMark                   unchanged until that is put right
//	mark deleted, evicted or lost in a fail-over   accepted: old tokens are too       until the holder writes or claims
//
// # A lost answer
//
// The client repeats by itself what it got no answer to, MaxRetries times. Here it does so only with Claim and Check.
// After ErrUnknown from Do, Set or Run, read back under the same token, or call again what stands being repeated:
// SET does, INCR does not. A repeated call passes the guard as the first did, and is refused if a newer token has come.
//
// How long a call can take is up to the client's options: the end of a context interrupts a call only with
// ContextTimeoutEnabled, and then only a deadline does.
//
// # Cost
//
// One round trip, as without the fence, and the time that the server needs for a short script; WaitReplicas adds the
// way to the replicas.
package redisfence
