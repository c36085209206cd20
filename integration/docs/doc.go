// Package docs tests what the documents say of the code: that the tests they name exist, and where their links lead.
package docs
