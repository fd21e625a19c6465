// Package dns compares examples/dns with CoreDNS on the same objects.
package dns
