// Package rig has what tests on real servers share: locks and waiters, proxies to each server, an
// observer of an election, and waits for events.
package rig
