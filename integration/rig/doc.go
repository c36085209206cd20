// Package rig has what the scenarios share: ways to hold a name, a client whose network can be disturbed, a witness
// that records which handle was live when, and a check for keys, leases and goroutines that are left behind.
//
// # What a witness knows
//
// If a call of a handle's Err returns nil, the handle was live when the call began, since an ended handle never becomes
// live again. So the handle was live from the return of its acquisition until the start of the last such call. However
// slowly the witness looks, this interval is never longer than the truth: if the intervals of two handles overlap,
// there were two holders at once.
package rig
