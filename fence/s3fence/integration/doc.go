// Package integration tests package s3fence against a real server, versitygw, which runs in a process of its own with
// its data in a folder of its own. It is a module of its own, so that s3fence requires no more than its importers need.
package integration
