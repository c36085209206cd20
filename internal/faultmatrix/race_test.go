//go:build race

package faultmatrix_test

const raceDetector = true
