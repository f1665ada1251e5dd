package boot

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"managoat/sandbox/guest/bridge"
	"managoat/sandbox/guest/furniture"
)

// oomFiles count kills for memory, of cgroup v2 and v1, as a container with a cgroup namespace of its own sees them.
var oomFiles = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// keepWords has standard error, which nobody may be attached to, go to a file that outlives the machine's run.
func keepWords() error {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND | syscall.O_NOFOLLOW
	if st, err := os.Lstat(bridge.Log); err == nil && (!st.Mode().IsRegular() || st.Size() > bridge.MaxLog) {
		if err := os.RemoveAll(bridge.Log); err != nil {
			return fmt.Errorf("the guest's log: %w", err)
		}
	}
	f, err := os.OpenFile(bridge.Log, flags, 0o600)
	if err != nil {
		return fmt.Errorf("the guest's log: %w", err)
	}
	defer f.Close()
	return syscall.Dup3(int(f.Fd()), 2, 0)
}

// Container prepares the container that this process is the first of, whose root file system may be any image's, and
// returns where the guest listens and the file that counts kills for memory, or nil.
func Container() (net.Listener, *os.File, error) {
	if err := keepWords(); err != nil {
		return nil, nil, err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return nil, nil, fmt.Errorf("leave the image's groups: %w", err)
	}
	key, links := os.Getenv(bridge.KeyVariable), os.Getenv(bridge.LinksVariable)
	os.Clearenv()
	if err := furniture.Furnish(bridge.Program, links); err != nil {
		return nil, nil, err
	}
	l, err := bridge.Listen(key)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	for _, name := range oomFiles {
		if f, err := os.Open(name); err == nil {
			return l, f, nil
		}
	}
	return l, nil, nil
}
