// Package integration tests package s3fence against a real server, versitygw, which runs in the test's process with a
// temporary folder. It is a separate module, so that s3fence requires only what its importers need.
package integration
