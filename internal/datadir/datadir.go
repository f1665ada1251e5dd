// Package datadir owns the data directory of a server: who uses it, and where things lie in it.
//
//	DIR          0755, so that PostgreSQL's user can pass through
//	DIR/lock     held by the server for as long as it runs; holds its pid and URL
//	DIR/pg       the embedded PostgreSQL's, 0700
//	DIR/machines the local provider's, 0700
//	DIR/egress   the egress process's socket and spool, 0700
//	DIR/acme     the account and the certificates of an ACME authority, 0700
package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Holder is the process that uses a data directory.
type Holder struct {
	PID int    `json:"pid"`
	URL string `json:"url"`
}

// Dir is a locked data directory.
type Dir struct {
	path string
	lock *os.File
}

// InUse says that another process holds the directory.
type InUse struct {
	Path   string
	Holder Holder
}

func (e *InUse) Error() string {
	where := ""
	if e.Holder.URL != "" {
		where = " at " + e.Holder.URL
	}
	return fmt.Sprintf("a server (pid %d) already runs on %s%s: use it, stop it with Ctrl-C or `managoat down --data %s`, or give another --data", e.Holder.PID, e.Path, where, e.Path)
}

// Open makes the directory when it is new and locks it. A directory in use answers *InUse.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("the data directory cannot be written: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			h, _ := holder(path)
			return nil, &InUse{Path: path, Holder: h}
		}
		return nil, err
	}
	return &Dir{path: path, lock: lock}, nil
}

// Beside names a directory that a server holds, for a verb that works beside it: nothing is locked.
func Beside(path string) *Dir {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &Dir{path: path}
}

// Held tells whether this process holds the directory.
func (d *Dir) Held() bool { return d.lock != nil }

// Announce writes who holds the directory, for the next one who asks.
func (d *Dir) Announce(url string) error {
	b, err := json.Marshal(Holder{PID: os.Getpid(), URL: url})
	if err != nil {
		return err
	}
	if err := d.lock.Truncate(0); err != nil {
		return err
	}
	_, err = d.lock.WriteAt(append(b, '\n'), 0)
	return err
}

// Path is a path below the directory.
func (d *Dir) Path(parts ...string) string {
	return filepath.Join(append([]string{d.path}, parts...)...)
}

// Close gives the directory up.
func (d *Dir) Close() error {
	if d.lock == nil {
		return nil
	}
	d.lock.Truncate(0)
	return d.lock.Close()
}

func holder(path string) (Holder, error) {
	var h Holder
	b, err := os.ReadFile(filepath.Join(path, "lock"))
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal(b, &h)
}

// StopServer asks the server that holds the directory to end (SIGTERM) and takes the directory once it has. With no
// server it takes it at once.
func StopServer(path string, timeout time.Duration) (*Dir, error) {
	deadline := time.Now().Add(timeout)
	asked := false
	for {
		d, err := Open(path)
		var inUse *InUse
		if !errors.As(err, &inUse) {
			return d, err
		}
		if !asked && inUse.Holder.PID > 1 {
			asked = true
			if err := syscall.Kill(inUse.Holder.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
				return nil, fmt.Errorf("stop the server (pid %d): %w", inUse.Holder.PID, err)
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the server (pid %d) does not end: %w", inUse.Holder.PID, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
