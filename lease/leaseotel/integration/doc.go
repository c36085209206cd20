// Package integration holds package leaseotel to package leaseprom: what the one sends through OpenTelemetry's exporter for
// Prometheus is what the other has. It is a module of its own, so that a user of leaseotel does not get Prometheus's client.
package integration
