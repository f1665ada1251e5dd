package server

import (
	"runtime"
	"sync"
)

const (
	maxProcs     = 4  // threads that run Go at once; a big host's number would cost every machine memory
	spareThreads = 16 // and those that may wait in system calls beside them
)

// KeepThreads makes the threads the guest may come to need. Go's runtime ends the whole process where it cannot
// start a thread, and a machine's process limit, which a fork bomb reaches, counts threads. The runtime keeps
// those that have nothing to do.
func KeepThreads() {
	runtime.GOMAXPROCS(min(maxProcs, runtime.GOMAXPROCS(0)))
	var there sync.WaitGroup
	enough := make(chan struct{})
	for range maxProcs + spareThreads {
		there.Add(1)
		go func() {
			runtime.LockOSThread() // so that each waits on a thread of its own
			defer runtime.UnlockOSThread()
			there.Done()
			<-enough
		}()
	}
	there.Wait()
	close(enough)
}
