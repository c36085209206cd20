//go:build !unix

package main

// hidePasswords does nothing: os.Args is a copy here.
func hidePasswords([]string) {}
