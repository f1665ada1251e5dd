// Package guest is the protocol between Managoat and the guest, pid 1 of every machine, and its client.
//
// One byte stream, opened by a provider, carries everything: it is multiplexed (yamux), the first stream
// says who is calling (the server or the egress process) and which protocol version it speaks. The guest
// only answers; the one thing it opens by itself are egress streams back to the egress process.
//
// What a guest says is said by the machine, not proved: the client decodes under limits and callers show
// it as such (source: machine).
package guest

import (
	"io/fs"
	"time"
)

// Version of the protocol. It grows by additions only; a client speaks to guests one version older.
const Version = 1

// Paths of a machine.
const (
	Home       = "/home/sprite"
	SearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // PATH, when Exec.Env has none
	NodePath   = "/opt/managoat/node/bin"                                       // appended to it where it is mounted; adapters put it first
	Shell      = "/usr/local/lib/managoat/bash"                                 // the recording shell: SHELL of an adapter
	CABundle   = "/etc/ssl/certs/managoat-ca.pem"                               // public roots and ours, where there is one
)

// Addresses inside a machine.
const (
	ProxyAddr = "127.0.0.1:3128"
	ModelHost = "model.managoat.internal" // port 80
	ModelAddr = "127.0.0.2"
	APIHost   = "api.managoat.internal" // port 80
	APIAddr   = "127.0.0.3"
)

// User a command runs as.
type User string

// Users known to a machine.
const (
	Root   User = "root"   // machine root: packages step only; refused without Capabilities.Root
	Sprite User = "sprite" // uid 1000, no capabilities
)

// SpoolKind says what happens when nobody reads a command's output.
type SpoolKind string

// Kinds of spools.
const (
	// SpoolLog keeps the first and the last half of its bound, counts what it drops between them, and never
	// blocks the command.
	SpoolLog SpoolKind = "log"
	// SpoolProtocol never drops: at its bound the command blocks until a reader acknowledges. For adapters.
	SpoolProtocol SpoolKind = "protocol"
)

// Exec describes a command.
type Exec struct {
	ID      string            `json:"id"`   // chosen by the caller, unique in the machine; starting the same ID twice is refused
	Argv    []string          `json:"argv"` // Argv[0] is looked up on PATH of Env
	Env     map[string]string `json:"env"`  // the whole environment; PATH, HOME, USER, LANG are defaulted when absent
	Dir     string            `json:"dir"`  // "" is the user's home
	User    User              `json:"user"`
	Sudo    bool              `json:"sudo"`    // its processes inherit the descriptor that makes the machine's sudo work
	Stdin   bool              `json:"stdin"`   // false: /dev/null
	TTY     bool              `json:"tty"`     // false unless somebody asked
	Joined  bool              `json:"joined"`  // standard error goes where standard output does, in the order of its writing
	Timeout time.Duration     `json:"timeout"` // wall clock, kept by the guest; 0: none. At its end the whole tree is killed
	Spool   SpoolKind         `json:"spool"`
	// SpoolBytes bounds the spool of each stream; 0: 1 MiB for logs, 8 MiB for protocols.
	SpoolBytes int64 `json:"spool_bytes"`
	// Grace is how long output is drained after the command itself exited while a forked daemon still holds
	// the pipe; 0: 200 ms. A daemon never holds the step.
	Grace time.Duration `json:"grace"`
	// LogPath, when set, also keeps the whole output (bounded by LogBytes) in this file of the machine, as Sprite.
	LogPath  string `json:"log_path"`
	LogBytes int64  `json:"log_bytes"`
}

// Stream of a command's output.
type Stream string

// Streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Chunk is a piece of output. Offset counts the bytes of that stream since the start of the command, dropped
// ones included, so that Offset+len(Data) is where to go on from.
type Chunk struct {
	Stream  Stream
	Offset  int64
	Data    []byte
	Dropped int64     // bytes dropped right before Data (SpoolLog only)
	At      time.Time // when the guest read it
}

// Exit says how a command ended. A command has exactly one.
type Exit struct {
	Code        int           `json:"code"`   // 0..255; -1 when a signal ended it
	Signal      string        `json:"signal"` // "SIGKILL" …, "" when it exited by itself
	Duration    time.Duration `json:"duration"`
	TimedOut    bool          `json:"timed_out"`
	OutOfMemory bool          `json:"out_of_memory"` // the kernel killed a process of this machine for memory meanwhile
	StdoutBytes int64         `json:"stdout_bytes"`  // all that was printed
	StderrBytes int64         `json:"stderr_bytes"`
	StartError  string        `json:"start_error"` // the command could not be started: "executable not found: xyz"
}

// Status of a command the guest knows.
type Status struct {
	ID      string    `json:"id"`
	Started time.Time `json:"started"`
	Exit    *Exit     `json:"exit"` // nil while it runs
}

// RecordTag is the environment variable that makes the recording shell (Shell) record what runs below it, under
// the variable's value. Elsewhere that shell is the real one.
const RecordTag = "MANAGOAT_REC_TAG"

// Record is one shell that an adapter ran, as the machine's recording shell saw it.
type Record struct {
	Seq      int64         `json:"seq"` // grows within one start of the machine
	Tag      string        `json:"tag"`
	Argv     []string      `json:"argv"` // at most 64 KiB of it
	Dir      string        `json:"dir"`
	Start    time.Time     `json:"start"`
	Duration time.Duration `json:"duration"`
	Code     int           `json:"code"` // 0..255; -1 when a signal ended it or Lost
	Signal   string        `json:"signal"`
	Lost     bool          `json:"lost"`   // the recorder itself was killed: how the shell ended is not known
	Output   string        `json:"output"` // pipe, file, terminal: what the adapter gave it
	Stdout   Recorded      `json:"stdout"` // of a terminal, or of one pipe or file for both: everything
	Stderr   Recorded      `json:"stderr"`
}

// Recorded is what a record keeps of a stream.
type Recorded struct {
	Head  []byte `json:"head"` // its first 16 KiB
	Tail  []byte `json:"tail"` // the last 16 KiB of the rest
	Bytes int64  `json:"bytes"`
}

// Entry of a directory listing.
type Entry struct {
	Name    string      `json:"name"`
	Type    string      `json:"type"` // file, directory, symlink, other
	Size    int64       `json:"size"`
	Mode    fs.FileMode `json:"mode"`
	ModTime time.Time   `json:"mod_time"`
	Target  string      `json:"target,omitempty"` // of a symlink, as written
}

// Errno-like errors of disk operations. They cross the wire by name and come back as *FileError.
const (
	ErrNotFound     = "path_not_found"
	ErrNotADir      = "not_a_directory"
	ErrIsADir       = "is_a_directory"
	ErrUnreadable   = "path_unreadable"
	ErrOutside      = "path_outside_sandbox"
	ErrTooLarge     = "too_large"
	ErrBadPath      = "invalid_path"
	ErrNotJSONOb    = "not_a_json_object"
	ErrDiskFull     = "disk_full"
	ErrNotSupported = "not_supported"
)

// FileError is a disk operation the guest refused or that failed.
type FileError struct {
	Code string // one of the Err constants
	Path string
}

func (e *FileError) Error() string { return e.Code + ": " + e.Path }
