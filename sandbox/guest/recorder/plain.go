package recorder

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// output is one of the shell's output streams.
type output struct {
	fd    int // ours: 1 or 2
	st    unix.Stat_t
	inner *os.File // where we read what the shell prints, when we are in between
	left  bool     // inner was not at its end when relay stopped
	start int64    // the file's size before, when it is a file
}

func (o *output) is(kind uint32) bool { return o.st.Mode&unix.S_IFMT == kind }

func (o *output) same(p *output) bool { return o.st.Dev == p.st.Dev && o.st.Ino == p.st.Ino }

// runPlain runs the shell on pipes, sockets or files. Into pipes and sockets it puts a pipe of its own; from a
// file it reads afterwards what was added.
func (r *recording) runPlain() (syscall.WaitStatus, error) {
	r.kind = kindPipe
	outs := [2]*output{{fd: 1}, {fd: 2}}
	files := [3]uintptr{0, 1, 2}
	var theirs []*os.File
	for i, o := range outs {
		if err := unix.Fstat(o.fd, &o.st); err != nil {
			continue // closed: the shell gets it closed
		}
		switch {
		case i == 1 && o.same(outs[0]) && !o.is(unix.S_IFCHR):
			files[2] = files[1] // one stream of both, in the order it is printed
		case o.is(unix.S_IFREG):
			r.kind = kindFile
			o.start = o.st.Size
		case o.is(unix.S_IFIFO), o.is(unix.S_IFSOCK):
			inner, w, err := os.Pipe()
			if err != nil {
				return 0, err
			}
			o.inner, theirs = inner, append(theirs, w)
			files[i+1] = w.Fd()
		}
	}
	pid, err := r.start(files, &syscall.SysProcAttr{})
	for _, w := range theirs {
		w.Close()
	}
	if err != nil {
		return 0, err
	}
	var copies sync.WaitGroup
	for i, o := range outs {
		if o.inner != nil {
			copies.Add(1)
			go func() {
				defer copies.Done()
				r.relay(i, o)
			}()
		}
	}
	status, err := wait(pid)
	if err != nil {
		return 0, err
	}
	r.settle(outs, &copies)
	for i, o := range outs {
		if o.is(unix.S_IFREG) && (i == 0 || !o.same(outs[0])) {
			r.readFile(i, o)
		}
	}
	return status, nil
}

// relay copies until the shell and its background jobs closed the stream, or settle sets a deadline.
func (r *recording) relay(i int, o *output) {
	buf := make([]byte, 32<<10)
	for {
		n, err := o.inner.Read(buf)
		if n > 0 {
			r.kept[i].Write(buf[:n])
			if writeAll(o.fd, buf[:n]) != nil {
				o.inner.Close() // nobody reads any more: the shell is to notice
				return
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			o.left = true
			return
		}
		if err != nil {
			o.inner.Close()
			return
		}
	}
}

// writeAll writes to a descriptor that whoever started us may have made non-blocking.
func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		switch {
		case err == nil:
			b = b[n:]
		case errors.Is(err, unix.EAGAIN):
			unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
	return nil
}

// settle waits a moment for the ends of the streams. What a background job still holds is left to a process
// that goes on copying, since our own end is what the adapter waits for.
func (r *recording) settle(outs [2]*output, copies *sync.WaitGroup) {
	for _, o := range outs {
		if o.inner != nil {
			o.inner.SetReadDeadline(time.Now().Add(drainPeriod))
		}
	}
	copies.Wait()
	files := []uintptr{0, 1, 2}
	var open bool
	for _, o := range outs {
		fd := ^uintptr(0)
		if o.left {
			open, fd = true, o.inner.Fd()
		}
		files = append(files, fd)
	}
	if open {
		syscall.ForkExec("/proc/self/exe", []string{CopyName}, &syscall.ProcAttr{Env: []string{}, Files: files})
	}
}

// Copy is the process that goes on copying: descriptor 3 to 1 and 4 to 2.
func Copy() {
	var all sync.WaitGroup
	for _, fd := range []int{1, 2} {
		in := os.NewFile(uintptr(fd+2), "inner")
		all.Add(1)
		go func() {
			defer all.Done()
			buf := make([]byte, 32<<10)
			for {
				n, err := in.Read(buf)
				if n > 0 && writeAll(fd, buf[:n]) != nil {
					in.Close()
					return
				}
				if err != nil {
					return
				}
			}
		}()
	}
	all.Wait()
}

// readFile records what was added to a file.
func (r *recording) readFile(i int, o *output) {
	f, err := os.Open("/proc/self/fd/" + string(rune('0'+o.fd)))
	if err != nil {
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return
	}
	added := st.Size() - o.start
	if added <= 0 {
		return
	}
	// Of a large file the middle is not even read.
	k := &r.kept[i]
	if added <= 2*keepHalf {
		io.Copy(k, io.NewSectionReader(f, o.start, added))
		return
	}
	io.Copy(k, io.NewSectionReader(f, o.start, keepHalf))
	io.Copy(k, io.NewSectionReader(f, st.Size()-keepHalf, keepHalf))
	k.total = added
}
