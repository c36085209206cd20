//go:build race

package security_test

const withRace = true
