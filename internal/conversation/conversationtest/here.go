package conversationtest

import goruntime "runtime"

// here is where this file's source lies.
func here() (pc uintptr, file string) {
	pc, file, _, _ = goruntime.Caller(0)
	return pc, file
}
