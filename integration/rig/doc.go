// Package rig has what the safety scenarios share: ways to hold a name, a client whose network can be disturbed, a witness
// of who was live when, and the search for what was left behind.
//
// # What a witness knows
//
// A handle counts as live at an instant if a call of its Err that began then or later returned nil: an ended handle
// never comes back. So a handle is known to have been live from the return of its acquisition to the last instant for which
// that holds. However slow the process that looks, that interval is never longer than the truth, and two of them that
// intersect are two holders.
package rig
