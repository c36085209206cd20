// Package rig has what tests on real servers share: ways to hold a name, proxies to each server, an
// observer of an election, and waits for events.
package rig
