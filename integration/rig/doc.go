// Package rig has what tests on real servers share: ways to hold a name, a client whose network can be disturbed, an
// observer of an election, and waits for events.
package rig
