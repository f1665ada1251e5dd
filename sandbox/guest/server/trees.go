package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/wire"
)

func isNotFound(err error) bool {
	var e *wire.Error
	return errors.As(err, &e) && e.Code == guest.ErrNotFound
}

func createTemporary(dir int) (*os.File, string, error) {
	name := ".managoat-" + randomName()
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, "", err
	}
	return os.NewFile(uintptr(fd), name), name, nil
}

// remove removes what a path names, not what a link there points to.
func remove(rs roots, p string) error {
	if err := checkPath(p); err != nil {
		return err
	}
	base := path.Base(path.Clean(p))
	if base == "/" || base == "." || base == ".." || path.Base(p) == ".." {
		return pathError(guest.ErrBadPath, p)
	}
	dir, _, err := find(rs, path.Dir(path.Clean(p)), unix.O_DIRECTORY)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := removeIn(dir, base, 0); err != nil {
		return codeOf(err, p)
	}
	return nil
}

func removeIn(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR):
		return err
	case depth > removeDepth:
		return unix.ENAMETOOLONG
	}
	d, err := openToEmpty(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, n := range names {
			if err := removeIn(int(d.Fd()), n, depth+1); err != nil {
				return err
			}
		}
		if err == io.EOF || (err == nil && len(names) == 0) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// openToEmpty opens a directory whose content is to go. One that its owner made read-only is given back to them first.
func openToEmpty(parent int, name string) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&0o700 != 0o700 {
		if err := unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), st.Mode&0o777|0o700, 0); err != nil {
			return nil, err
		}
	}
	return reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY)
}

// copying is one copy of a tree, with what it may still take.
type copying struct {
	files int
	bytes int64
}

// copyTree copies regular files and directories. Everything is opened without following links: a link that
// is swapped in during the copy is skipped like any other.
func copyTree(rs roots, from, to string) error {
	if err := checkPath(from); err != nil {
		return err
	}
	parent, _, err := find(rs, path.Dir(path.Clean(from)), unix.O_DIRECTORY)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	src, err := openDir(parent, path.Base(path.Clean(from)))
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil // not there, a link, or no directory: nothing to copy
	case err != nil:
		return codeOf(err, from)
	}
	defer src.Close()
	real, err := where(int(src.Fd()))
	if err != nil {
		return codeOf(err, from)
	}
	dst, target, err := walkTo(rs, to, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if (roots{real}).hold(target) {
		return pathError(guest.ErrBadPath, to) // into itself
	}
	c := copying{files: maxTree, bytes: copyBytes}
	return c.dir(src, dst, from, 0)
}

func openDir(parent int, name string) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (c *copying) dir(src *os.File, dst int, p string, depth int) error {
	if depth > maxDepth {
		return pathError(guest.ErrTooLarge, p)
	}
	for {
		names, err := src.Readdirnames(1024)
		for _, n := range names {
			if err := c.entry(int(src.Fd()), dst, n, path.Join(p, n), depth); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return codeOf(err, p)
		}
	}
}

func (c *copying) entry(src, dst int, name, p string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(src, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return codeOf(err, p)
	}
	if c.files--; c.files < 0 {
		return pathError(guest.ErrTooLarge, p)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.file(src, dst, name, p)
	case unix.S_IFDIR:
		sub, err := openDir(src, name)
		if err != nil {
			return codeOf(err, p)
		}
		defer sub.Close()
		if err := unix.Mkdirat(dst, name, privateMode); err != nil && !errors.Is(err, unix.EEXIST) {
			return codeOf(err, p)
		}
		target, err := openDir(dst, name)
		if err != nil {
			return codeOf(err, p)
		}
		defer target.Close()
		if err := c.dir(sub, int(target.Fd()), p, depth+1); err != nil {
			return err
		}
		// After its content: a directory may be one that its owner cannot write.
		return target.Chmod(modeOf(st.Mode))
	}
	return nil
}

func (c *copying) file(src, dst int, name, p string) error {
	fd, err := unix.Openat(src, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return codeOf(err, p)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return codeOf(err, p)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	if c.bytes -= st.Size; c.bytes < 0 {
		return pathError(guest.ErrTooLarge, p)
	}
	if err := place(dst, name, st.Mode, io.LimitReader(f, st.Size), st.Size); err != nil {
		return codeOf(fmt.Errorf("copy: %w", err), p)
	}
	return nil
}
