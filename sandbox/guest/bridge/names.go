// Package bridge carries connections into a machine that something else than Managoat keeps, as a container engine does. The
// first one is the guest's own standard input and output, which who starts the machine is attached to. For each further one
// the engine runs this program beside the guest, with its standard input and output as the stream, and it passes everything
// on to the guest's socket.
//
// The socket is an abstract one of the machine's network namespace, which every program of the machine can name. So who
// connects has to show the machine's key, which the engine gives its own processes in their environment: the guest's and the
// bridge's are closed to everything that runs in the machine, machine root included.
package bridge

// Name is argv[0] of the guest's binary as the first process of a container, and with the argument Argument as what the
// container engine runs beside it.
const (
	Name     = "managoat-container"
	Argument = "bridge"
)

// Program is where a container has the guest's binary: above all that machine root rearranges.
const Program = "/.managoat/" + Name

// LinksVariable holds links that the machine gets ("NAME=TO", with colons between): to what is mounted elsewhere.
const LinksVariable = "MANAGOAT_GUEST_LINKS"

// KeyVariable is where the engine's processes find the machine's key.
const KeyVariable = "MANAGOAT_GUEST_KEY"

// KeySize is the length of a key, in characters.
const KeySize = 64

// Log is where the guest writes what it has to say about itself, its last words too. A start begins it anew when it is large.
const Log = "/.managoat/guest.log"

// MaxLog is how many bytes that is.
const MaxLog = 1 << 20

// Connected is the byte that the guest answers a key with, and its standard output begins with.
const Connected = '+'
