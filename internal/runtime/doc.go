// Package runtime knows the agents' runtimes: one file for each kind, with its command line, its environment, what lies
// in its config home, and its quirks; and the installation of what we pin for them (install.go, locks/).
//
// To the conversation engine every runtime is an ACP agent started in a machine. What differs is told by a Runtime; what
// a runtime does not tell by the protocol is read out of its own fields here, and nowhere else.
package runtime
