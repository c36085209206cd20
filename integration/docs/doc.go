// Package docs tests the documents: the tests and files that they name exist, their links lead somewhere, and their Go
// code compiles.
package docs
