package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/shim"
	"managoat/sandbox/guest/wire"
)

// Limits of disk operations.
const (
	maxPath     = 4096     // bytes
	maxEntries  = 10000    // of a listing
	readSize    = 64 << 10 // bytes of a file per frame
	maxWrite    = 64 << 20 // bytes of one file written through the protocol
	maxTree     = 100000   // files and directories of one copy
	maxDepth    = 100      // of a tree that is copied
	removeDepth = 1000     // of one that is removed, which holds a descriptor a level: what was copied in part must go
	copyBytes   = 1 << 30  // of one copy
	defaultMode = 0o755    // of directories made on the way
	privateMode = 0o700    // of those under ~/.managoat
)

// Where a write as machine root may go.
var rootRoots = []string{"/etc"}

// asSprite runs f on a thread whose file system identity is the sandbox's user, so that the kernel decides
// what it may read and write. Where the guest is that user already, nothing changes.
func asSprite(f func() error) error { return as(shim.SpriteUID, f) }

func become(uid int) {
	unix.SetfsgidRetGid(uid)
	unix.SetfsuidRetUid(uid)
}

func as(uid int, f func() error) error {
	own := unix.Geteuid()
	if own == uid {
		return f()
	}
	runtime.LockOSThread()
	become(uid)
	// Neither call reports a failure; asking for an impossible id tells what is.
	if now, _ := unix.SetfsuidRetUid(-1); now != uid {
		return fmt.Errorf("the guest cannot act as uid %d", uid)
	}
	defer func() {
		become(own)
		if now, _ := unix.SetfsuidRetUid(-1); now == own {
			runtime.UnlockOSThread() // else no other goroutine may run here
		}
	}()
	return f()
}

func pathError(code, p string) error { return &wire.Error{Code: code, Path: p} }

// codeOf names a failed system call.
func codeOf(err error, p string) error {
	var known *wire.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, unix.ENOENT):
		return pathError(guest.ErrNotFound, p)
	case errors.Is(err, unix.ENOTDIR):
		return pathError(guest.ErrNotADir, p)
	case errors.Is(err, unix.EISDIR):
		return pathError(guest.ErrIsADir, p)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return pathError(guest.ErrUnreadable, p)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EXDEV):
		return pathError(guest.ErrBadPath, p)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return pathError(guest.ErrDiskFull, p)
	case errors.Is(err, unix.EROFS):
		return pathError(guest.ErrUnreadable, p)
	}
	return fmt.Errorf("%s: %w", p, err)
}

// checkPath refuses what no lookup should see.
func checkPath(p string) error {
	if p == "" || len(p) > maxPath || !path.IsAbs(p) || strings.ContainsRune(p, 0) {
		return pathError(guest.ErrBadPath, strings.ToValidUTF8(strings.ReplaceAll(p[:min(len(p), maxPath)], "\x00", "�"), "�"))
	}
	return nil
}

// open opens a path for nothing but to hold what it names, links followed, as the kernel resolves it at this
// moment; links of /proc that jump into a process's own files are not followed.
func open(dir int, p string, flags uint64) (int, error) {
	return unix.Openat2(dir, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_NO_MAGICLINKS})
}

// where tells the path of what a descriptor holds.
func where(fd int) (string, error) {
	p, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", err
	}
	if st := (unix.Stat_t{}); unix.Fstat(fd, &st) == nil && st.Nlink == 0 {
		return "", unix.ENOENT // removed meanwhile; the kernel appends " (deleted)"
	}
	return p, nil
}

// roots are the resolved directories an operation is confined to.
type roots []string

func resolveRoots(paths []string) (roots, error) {
	var rs roots
	for _, p := range paths {
		if err := checkPath(p); err != nil {
			return nil, err
		}
		fd, err := open(unix.AT_FDCWD, p, unix.O_DIRECTORY)
		if err != nil {
			continue // a root that is not there confines to nothing
		}
		real, err := where(fd)
		unix.Close(fd)
		if err == nil {
			rs = append(rs, real)
		}
	}
	return rs, nil
}

func (rs roots) hold(p string) bool {
	for _, r := range rs {
		if p == r || r == "/" || strings.HasPrefix(p, r+"/") {
			return true
		}
	}
	return false
}

// find opens what a path names, provided that it lies under one of the roots. What is checked is what was
// opened: a link that is swapped afterwards changes nothing.
func find(rs roots, p string, flags uint64) (fd int, real string, err error) {
	if err := checkPath(p); err != nil {
		return -1, "", err
	}
	fd, err = open(unix.AT_FDCWD, p, flags)
	if err != nil {
		return -1, "", codeOf(err, p)
	}
	real, err = where(fd)
	if err == nil && !rs.hold(real) {
		err = pathError(guest.ErrOutside, p)
	}
	if err != nil {
		unix.Close(fd)
		return -1, "", codeOf(err, p)
	}
	return fd, real, nil
}

// reopen opens for reading what an O_PATH descriptor holds.
func reopen(fd int, flags int) (*os.File, error) {
	name := fmt.Sprintf("/proc/self/fd/%d", fd)
	n, err := unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), name), nil
}

// onPath does one disk operation.
func (s *Server) onPath(stream io.ReadWriter, op string, p wire.Path) error {
	uid := shim.SpriteUID
	if p.Root {
		if op != wire.OpWrite {
			return refuse(wire.CodeDenied, "machine root may only write files")
		}
		p.Roots = rootRoots
		if s.cfg.Root {
			uid = 0
		}
	}
	return as(uid, func() error {
		rs, err := resolveRoots(p.Roots)
		if err != nil {
			return err
		}
		switch op {
		case wire.OpList:
			return list(stream, rs, p)
		case wire.OpStat:
			return stat(stream, rs, p)
		case wire.OpRead:
			return read(stream, rs, p)
		case wire.OpWrite:
			return write(stream, rs, p)
		case wire.OpMkdir:
			return mkdir(stream, rs, p)
		case wire.OpRemove:
			return answerIf(stream, remove(rs, p.Path))
		case wire.OpCopyTree:
			return answerIf(stream, copyTree(rs, p.Path, p.To))
		}
		panic("unreachable: " + op)
	})
}

func typeOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	}
	return "other"
}

func entryOf(name string, st *unix.Stat_t) guest.Entry {
	e := guest.Entry{
		Name: name, Type: typeOf(st.Mode), Size: st.Size, Mode: fs.FileMode(st.Mode & 0o777),
		ModTime: time.Unix(st.Mtim.Unix()),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Mode |= fs.ModeDir
	case unix.S_IFLNK:
		e.Mode |= fs.ModeSymlink
	}
	for bit, flag := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if st.Mode&bit != 0 {
			e.Mode |= flag
		}
	}
	return e
}

// name is a directory entry before it is looked at closely.
type name struct {
	text string
	dir  bool
}

func compareNames(a, b name) int {
	if a.dir != b.dir {
		if a.dir {
			return -1
		}
		return 1
	}
	return strings.Compare(a.text, b.text)
}

// list keeps the first limit names while it reads, so that a directory of millions costs no memory.
func list(w io.Writer, rs roots, p wire.Path) error {
	limit := int(min(max(p.Limit, 1), maxEntries))
	fd, _, err := find(rs, p.Path, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	dir, err := reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return codeOf(err, p.Path)
	}
	defer dir.Close()
	var names []name
	more := false
	for {
		batch, err := dir.ReadDir(1024)
		for _, d := range batch {
			names = append(names, name{d.Name(), d.IsDir()})
		}
		if len(names) > 2*limit+1024 {
			slices.SortFunc(names, compareNames)
			names, more = names[:limit:limit], true
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return codeOf(err, p.Path)
		}
	}
	slices.SortFunc(names, compareNames)
	if len(names) > limit {
		names, more = names[:limit], true
	}
	entries := make([]guest.Entry, 0, len(names))
	for _, n := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, n.text, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // gone meanwhile
		}
		e := entryOf(n.text, &st)
		if e.Type == "symlink" {
			buf := make([]byte, maxPath)
			if n, err := unix.Readlinkat(fd, n.text, buf); err == nil {
				e.Target = string(buf[:n])
			}
		}
		entries = append(entries, e)
	}
	raw, err := json.Marshal(entries)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	return answer(w, wire.Listing{Entries: raw, More: more})
}

func stat(w io.Writer, rs roots, p wire.Path) error {
	fd, real, err := find(rs, p.Path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return codeOf(err, p.Path)
	}
	raw, err := json.Marshal(entryOf(path.Base(real), &st))
	if err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	return answer(w, wire.Found{Path: real, Size: st.Size, Entry: raw})
}

// openRegular opens a regular file for reading; anything else could block or have effects.
func openRegular(fd int, p string) (*os.File, int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, codeOf(err, p)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return nil, 0, pathError(guest.ErrIsADir, p)
	default:
		return nil, 0, pathError(guest.ErrUnreadable, p)
	}
	f, err := reopen(fd, unix.O_RDONLY)
	if err != nil {
		return nil, 0, codeOf(err, p)
	}
	return f, st.Size, nil
}

func read(w io.Writer, rs roots, p wire.Path) error {
	fd, _, err := find(rs, p.Path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	f, size, err := openRegular(fd, p.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := answer(w, wire.Found{Size: size}); err != nil {
		return err
	}
	var r io.Reader = f
	if p.Limit > 0 {
		r = io.LimitReader(f, p.Limit)
	}
	var end wire.Answer
	buf := make([]byte, readSize)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := wire.WriteFrame(w, wire.FrameData, buf[:n]); err != nil {
				return nil // the caller went away
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			end.Error = &wire.Error{Code: guest.ErrUnreadable, Path: p.Path}
			break
		}
	}
	return writeJSONFrame(w, wire.FrameEnd, end)
}

// walkTo opens the directory p, making what is missing under the roots. Every step is taken from the
// directory reached before, so a link swapped on the way leads nowhere unchecked.
func walkTo(rs roots, p string, mode uint32) (fd int, real string, err error) {
	if err := checkPath(p); err != nil {
		return -1, "", err
	}
	fd, err = open(unix.AT_FDCWD, "/", unix.O_DIRECTORY)
	if err != nil {
		return -1, "", codeOf(err, p)
	}
	for _, step := range strings.Split(p, "/") {
		if step == "" || step == "." {
			continue
		}
		next, err := open(fd, step, unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			next, err = makeStep(rs, fd, step, mode)
		}
		unix.Close(fd)
		if err != nil {
			return -1, "", codeOf(err, p)
		}
		fd = next
	}
	real, err = where(fd)
	if err == nil && !rs.hold(real) {
		err = pathError(guest.ErrOutside, p)
	}
	if err != nil {
		unix.Close(fd)
		return -1, "", codeOf(err, p)
	}
	return fd, real, nil
}

func makeStep(rs roots, dir int, step string, mode uint32) (int, error) {
	real, err := where(dir)
	if err != nil {
		return -1, err
	}
	if !rs.hold(real) {
		return -1, pathError(guest.ErrOutside, path.Join(real, step))
	}
	if mode == 0 {
		mode = defaultMode
		if private := guest.Home + "/.managoat"; strings.HasPrefix(path.Join(real, step)+"/", private+"/") {
			mode = privateMode
		}
	}
	if err := unix.Mkdirat(dir, step, mode); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	// ENOENT here is a dangling link: there is nothing to follow and nothing was made.
	return open(dir, step, unix.O_DIRECTORY)
}

func mkdir(w io.Writer, rs roots, p wire.Path) error {
	fd, real, err := walkTo(rs, p.Path, p.Mode)
	if err != nil {
		return err
	}
	unix.Close(fd)
	return answer(w, wire.Found{Path: real})
}

func write(stream io.ReadWriter, rs roots, p wire.Path) error {
	if p.Size < 0 || p.Size > maxWrite {
		return pathError(guest.ErrTooLarge, p.Path)
	}
	dir, err := writeTo(rs, p.Path, p.Mode, io.LimitReader(stream, p.Size), p.Size)
	if err != nil {
		return codeOf(err, p.Path)
	}
	unix.Close(dir)
	return answer(stream, nil)
}

// writeTo writes a file through a temporary name and returns the directory it lies in.
func writeTo(rs roots, p string, mode uint32, r io.Reader, size int64) (dir int, err error) {
	if err := checkPath(p); err != nil {
		return -1, err
	}
	base := path.Base(p)
	if strings.HasSuffix(p, "/") || base == "." || base == ".." || base == "/" {
		return -1, pathError(guest.ErrIsADir, p)
	}
	dir, _, err = walkTo(rs, path.Dir(p), 0)
	if err != nil {
		return -1, err
	}
	if err := place(dir, base, mode, r, size); err != nil {
		unix.Close(dir)
		return -1, err
	}
	return dir, nil
}

// place writes base in dir: readers see the old file or the whole new one.
func place(dir int, base string, mode uint32, r io.Reader, size int64) (err error) {
	var st unix.Stat_t
	if unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EISDIR
	}
	f, temporary, err := createTemporary(dir)
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			unix.Unlinkat(dir, temporary, 0)
		}
	}()
	n, err := io.Copy(plainWriter{f}, r)
	if err != nil {
		return err
	}
	if n != size {
		return io.ErrUnexpectedEOF
	}
	if err := f.Chmod(modeOf(mode)); err != nil {
		return err
	}
	return unix.Renameat(dir, temporary, dir, base)
}

// modeOf turns permission bits into what os.File.Chmod takes. Special bits are nobody's to set here.
func modeOf(mode uint32) fs.FileMode { return fs.FileMode(mode & 0o777) }

// openLog opens the file that keeps a command's output, as the sandbox's user.
func openLog(p string, bound int64) (*outputLog, error) {
	if bound <= 0 {
		bound = defaultLog
	}
	var f *os.File
	err := asSprite(func() error {
		if err := checkPath(p); err != nil {
			return err
		}
		dir, _, err := walkTo(roots{"/"}, path.Dir(p), 0)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		fd, err := unix.Openat(dir, path.Base(p), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return codeOf(err, p)
		}
		f = os.NewFile(uintptr(fd), p)
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			f.Close()
			return pathError(guest.ErrUnreadable, p)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &outputLog{f: f, left: bound}, nil
}
