// Package story holds the tests of the whole product: the real binary on a data directory of its own, its embedded
// PostgreSQL, its egress process and real machines, with the real claude adapter at work in them, in an outside world on
// loopback (package testworld). They use the product as people do: over HTTP, with the command line, in a browser.
package story
