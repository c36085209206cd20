//go:build !race

package cluster_test

const withRace = false
