// Package integration compares package leaseotel, through OpenTelemetry's exporter for Prometheus, with package
// leaseprom: both must report the same metrics. It is a separate module, so that users of leaseotel do not depend on
// Prometheus's client.
package integration
