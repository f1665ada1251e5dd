package local

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// mounts is the one thread of this process that leaves the host's mount namespace, to lay machines out. It is
// never given back to the runtime and lives as long as the process: a thread that ended instead would take
// along every child that was started from it with a parent-death signal, whoever started it.
var mounts struct {
	once sync.Once
	jobs chan func()
}

// onMountThread runs f on that thread, alone. f may change the thread's mount namespace.
func onMountThread(f func()) {
	mounts.once.Do(func() {
		mounts.jobs = make(chan func())
		go serveMounts()
	})
	done := make(chan struct{})
	mounts.jobs <- func() {
		defer close(done)
		f()
	}
	<-done
}

func serveMounts() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// Not the first thread: /proc/self is its view. While it waits here, another goroutine gets another.
		other := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(other)
			serveMounts()
		}()
		<-other
		runtime.UnlockOSThread()
		return
	}
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err == nil {
		err = unix.Unshare(unix.CLONE_FS) // a thread that shares its root with others cannot enter a namespace
	}
	if err != nil {
		panic(fmt.Sprintf("local provider: no thread for mounts: %v", err))
	}
	for job := range mounts.jobs {
		job()
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNS); err != nil {
			panic(fmt.Sprintf("local provider: the thread for mounts cannot come back: %v", err))
		}
	}
}
