// Package probe tries, from inside a machine, what must not work there, and prints what happened. The
// conformance suite runs it as every user of a machine.
package probe

// Name is argv[0] of the guest's binary in this mode.
const Name = "managoat-probe"

// OK is the result of what worked; everything else is the name of an errno.
const OK = "ok"
