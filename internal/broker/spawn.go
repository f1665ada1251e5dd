package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// ErrServed says that another process serves the directory already.
var ErrServed = errors.New("another egress process serves this directory")

// maxLog is the size in bytes from which the process's log is put aside at the next start; one old log is kept.
const maxLog = 8 << 20

// lockPoll is the pause between tries for the lock of a directory.
const lockPoll = 10 * time.Millisecond

// Command is a Spawn that runs argv with env (the whole environment) in a session of its own, so that neither
// a signal to the server's group nor the server's end reaches it. Its output goes to a log in the directory.
func Command(argv, env []string) Spawn {
	return func(_ context.Context, dir string) (<-chan error, error) {
		path := filepath.Join(dir, logName)
		if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
			if err := os.Rename(path, path+".1"); err != nil {
				return nil, fmt.Errorf("put the old log aside: %w", err)
			}
		}
		log, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		defer log.Close()
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env, cmd.Dir = env, "/"
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		exited := make(chan error, 1)
		// The process outlives us on purpose, so nobody can wait for this goroutine: it only keeps the process
		// from staying a zombie while the server lives.
		go func() { exited <- cmd.Wait() }()
		return exited, nil
	}
}

// prepareDir makes the egress directory private: its socket gives keys and takes orders.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// lockDir waits for the directory's lock, which a process holds as long as it lives.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		f, err := tryLockDir(dir)
		if !errors.Is(err, ErrServed) {
			return f, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func tryLockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrServed
		}
		return nil, err
	}
	return f, nil
}
