package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"managoat/sandbox"
)

// copying copies trees out of a machine that may run. Whatever it does meanwhile, no link of it is followed: every file
// is opened in the directory that it was found in.
type copying struct {
	ctx  context.Context
	room int64 // bytes that may be copied
}

// tree copies what keep says of the directory from to a new directory, as a lower layer of an overlay.
func (c *copying) tree(from, to string, keep func(name string) bool) error {
	in, err := openDir(unix.AT_FDCWD, from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	out, err := openDir(unix.AT_FDCWD, to)
	if err != nil {
		return err
	}
	defer out.Close()
	t := treeCopy{copying: c, root: out, keep: keep, links: make(map[uint64]string)}
	return t.directory(in, out, "")
}

type treeCopy struct {
	*copying
	root  *os.File          // of the copy
	keep  func(string) bool // by path below the root
	links map[uint64]string // files with several names: inode → path of the copy
}

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// directory copies what lies in a directory, and then what it is itself.
func (t *treeCopy) directory(in, out *os.File, at string) error {
	names, err := in.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		if err := t.entry(in, out, path.Join(at, name), name); err != nil {
			return fmt.Errorf("copy %s: %w", path.Join(at, name), err)
		}
	}
	return same(in, out)
}

func (t *treeCopy) entry(in, out *os.File, at, name string) error {
	if !t.keep(at) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(in.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil // it is gone since the directory was read
	} else if err != nil {
		return err
	}
	to := int(out.Fd())
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		from, err := openDir(int(in.Fd()), name)
		if err != nil {
			return err
		}
		defer from.Close()
		if err := unix.Mkdirat(to, name, 0o700); err != nil {
			return err
		}
		made, err := openDir(to, name)
		if err != nil {
			return err
		}
		defer made.Close()
		return t.directory(from, made, at)
	case unix.S_IFREG:
		if first, ok := t.links[st.Ino]; ok && st.Nlink > 1 {
			return unix.Linkat(int(t.root.Fd()), first, to, name, 0)
		}
		if st.Nlink > 1 {
			t.links[st.Ino] = at
		}
		return t.file(in, out, name)
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(in.Fd()), name, target)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(string(target[:n]), to, name); err != nil {
			return err
		}
	case unix.S_IFCHR:
		if st.Rdev != 0 {
			return nil
		}
		// The overlay's mark for what is deleted of the layers below.
		if err := unix.Mknodat(to, name, st.Mode, 0); err != nil {
			return err
		}
	case unix.S_IFIFO:
		if err := unix.Mknodat(to, name, st.Mode, 0); err != nil {
			return err
		}
	default:
		return nil // a socket without its program, a device that nothing inside may open
	}
	if err := unix.Fchownat(to, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.UtimesNanoAt(to, name, []unix.Timespec{st.Mtim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func (t *treeCopy) file(in, out *os.File, name string) error {
	fd, err := unix.Openat(int(in.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	from := os.NewFile(uintptr(fd), name)
	defer from.Close()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New("it became something else meanwhile")
	}
	if t.room -= st.Size(); t.room < 0 {
		return &sandbox.Error{Class: sandbox.Capacity, Op: "snapshot", Reason: "it is more than all layers together may occupy"}
	}
	fd, err = unix.Openat(int(out.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), name)
	defer to.Close()
	if _, err := io.Copy(to, io.LimitReader(from, st.Size())); err != nil { // by the kernel, which may share the blocks
		return err
	}
	return same(from, to)
}

// same gives a copy the owner, mode, attributes and times of its original. Of the overlay's own attributes it keeps what
// a directory hides; the others tell of the machine they were made for.
func same(from, to *os.File) error {
	in, out := int(from.Fd()), int(to.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return err
	}
	if err := unix.Fchown(out, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(out, st.Mode&^unix.S_IFMT); err != nil {
		return err
	}
	names := make([]byte, 4096)
	n, err := unix.Flistxattr(in, names)
	if errors.Is(err, unix.ENOTSUP) {
		n, err = 0, nil
	}
	if err != nil {
		return fmt.Errorf("attributes: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") && name != "trusted.overlay.opaque" {
			continue
		}
		value := make([]byte, 64<<10) // the kernel's own limit of one
		n, err := unix.Fgetxattr(in, name, value)
		if err == nil {
			err = unix.Fsetxattr(out, name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	times := []unix.Timespec{st.Mtim, st.Mtim}
	if err := unix.UtimesNanoAt(out, "", times, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("times: %w", err)
	}
	return nil
}
