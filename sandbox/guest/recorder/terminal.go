package recorder

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runTerminal runs the shell on a terminal of its own, set up like the one we were started on, and passes both
// directions through.
func (r *recording) runTerminal() (syscall.WaitStatus, error) {
	settings, err := unix.IoctlGetTermios(1, unix.TCGETS)
	if err != nil {
		return 0, err
	}
	master, slave, err := openPTY(settings)
	if err != nil {
		return 0, err
	}
	defer master.Close()
	copySize(master)
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, unix.SIGWINCH)
	go func() { // ends with this process, which ends with the shell
		for range sizes {
			copySize(master)
		}
	}()
	files := [3]uintptr{0, slave.Fd(), 2}
	for _, fd := range []int{0, 2} {
		if isTerminal(fd) {
			files[fd] = slave.Fd()
		}
	}
	pid, err := r.start(files, &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1})
	slave.Close()
	if err != nil {
		return 0, err
	}
	// What is typed goes in as it is: the inner terminal echoes, edits and makes signals of it.
	raw := *settings
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	unix.IoctlSetTermios(1, unix.TCSETS, &raw)
	defer unix.IoctlSetTermios(1, unix.TCSETS, settings)
	if isTerminal(0) {
		go r.typed(master)
	}
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		r.printed(master)
	}()
	status, err := wait(pid)
	if err != nil {
		return 0, err
	}
	master.SetReadDeadline(time.Now().Add(drainPeriod))
	<-printed
	return status, nil
}

// typed copies our input to the shell's terminal. It ends with this process.
func (r *recording) typed(master *os.File) {
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(0, buf)
		if n > 0 {
			if _, err := master.Write(buf[:n]); err != nil {
				return
			}
		}
		switch {
		case err == unix.EAGAIN:
			unix.Poll([]unix.PollFd{{Fd: 0, Events: unix.POLLIN}}, -1)
		case err == unix.EINTR:
		case err != nil || n == 0:
			return
		}
	}
}

// printed copies the shell's terminal to ours until it is hung up, or its deadline.
func (r *recording) printed(master *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := master.Read(buf)
		if n > 0 {
			r.kept[0].Write(buf[:n])
			if writeAll(1, buf[:n]) != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func openPTY(settings *unix.Termios) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		master.Close()
		return nil, nil, err
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		master.Close()
		return nil, nil, errno
	}
	slave = os.NewFile(peer, "pts")
	if err := unix.IoctlSetTermios(int(peer), unix.TCSETS, settings); err != nil {
		master.Close()
		slave.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

func copySize(master *os.File) {
	size, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
	if err != nil {
		return
	}
	conn, err := master.SyscallConn()
	if err != nil {
		return
	}
	conn.Control(func(fd uintptr) { unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
}
