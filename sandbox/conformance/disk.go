package conformance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

var home = []string{guest.Home}

var disk = []Check{
	{Name: "reads resolve links where they lead and stay under their roots", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must(`mkdir -p ~/a/b /tmp/out && echo inside > ~/a/b/f && echo outside > /tmp/out/secret
			ln -s /etc ~/etc; ln -s /etc/passwd ~/passwd; ln -s ~/a ~/near; ln -s near/b ~/nested; ln -s /nowhere ~/dangling
			ln -s ../../../../etc/passwd ~/a/b/up; ln -s loop ~/loop; ln -s /proc/self/environ ~/environ; ln -s /proc/1/root/etc/passwd ~/magic`)
		for path, code := range map[string]string{
			"/home/sprite/passwd":                guest.ErrOutside,
			"/home/sprite/etc/passwd":            guest.ErrOutside,
			"/home/sprite/a/b/up":                guest.ErrOutside,
			"/home/sprite/../../etc/passwd":      guest.ErrOutside,
			"/home/sprite/a/../../../etc/passwd": guest.ErrOutside,
			"/etc/passwd":                        guest.ErrOutside,
			"/tmp/out/secret":                    guest.ErrOutside,
			"/home/spritely":                     guest.ErrNotFound,
			"/home/sprite/dangling":              guest.ErrNotFound,
			"/home/sprite/none":                  guest.ErrNotFound,
			"/home/sprite/a/b/f/g":               guest.ErrNotADir,
			"/home/sprite/loop":                  guest.ErrBadPath,
			"/home/sprite/a":                     guest.ErrIsADir,
			"a/b/f":                              guest.ErrBadPath,
			"":                                   guest.ErrBadPath,
			"/home/sprite/a\x00b":                guest.ErrBadPath,
			"/" + strings.Repeat("a", 5000):      guest.ErrBadPath,
		} {
			_, _, err := m.ReadFile(t.Context(), home, path, 100)
			refused(t, "read "+head(path), err, code)
		}
		for _, path := range []string{"/home/sprite/environ", "/home/sprite/magic"} {
			if data, _, err := m.ReadFile(t.Context(), home, path, 100); err == nil {
				t.Errorf("%s gave %q", path, data)
			}
		}
		for _, path := range []string{"/home/sprite/a/b/f", "/home/sprite/nested/f", "/home/sprite/near/b/f", "/home/sprite/a/./b/../b/f", "/tmp/../home/sprite/a/b/f"} {
			data, size, err := m.ReadFile(t.Context(), home, path, 100)
			if err != nil || string(data) != "inside\n" || size != 7 {
				t.Errorf("read %s: %q %d %v", path, data, size, err)
			}
		}
		if _, real, err := m.Stat(t.Context(), home, "/home/sprite/nested"); err != nil || real != "/home/sprite/a/b" {
			t.Errorf("stat of a link: %s %v", real, err)
		}
		_, _, err := m.ReadFile(t.Context(), nil, "/home/sprite/a/b/f", 100)
		refused(t, "read without roots", err, guest.ErrOutside)
	}},
	{Name: "commands start while files are read", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("echo inside > ~/f")
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		defer readers.Wait()
		defer cancel()
		for range 4 {
			readers.Go(func() {
				for ctx.Err() == nil {
					_, _, _ = m.ReadFile(ctx, home, "/home/sprite/f", 100)
				}
			})
		}
		for range 60 {
			m.must("true")
		}
	}},
	{Name: "a link that is swapped during reads never shows what lies outside", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("mkdir ~/in /tmp/out && echo inside > ~/in/f && echo outside > /tmp/out/f && ln -s ~/in ~/swap")
		m.begin(guest.Exec{Argv: []string{"sh", "-c", "while :; do ln -sfn ~/in ~/swap; ln -sfn /tmp/out ~/swap; done"}})
		inside, outside := 0, 0
		eventually(t, "reads of both", func() bool {
			for range 50 {
				data, _, err := m.ReadFile(t.Context(), home, "/home/sprite/swap/f", 100)
				var f *guest.FileError
				switch {
				case err == nil && string(data) == "inside\n":
					inside++
				case err == nil:
					t.Fatalf("read %q", data)
				case asError(err, &f) && f.Code == guest.ErrOutside:
					outside++
				}
				_ = m.WriteFile(t.Context(), home, "/home/sprite/swap/w", []byte("x"), 0o644)
			}
			return inside > 50 && outside > 50
		})
		if r := m.sh("test -e /tmp/out/w"); r.Code == 0 {
			t.Errorf("a write went outside")
		}
	}},
	{Name: "reading what is no file neither hangs nor has effects", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("mkfifo ~/fifo; ln -s /dev/zero ~/zero; perl -e '' 2>/dev/null; true")
		for _, path := range []string{"/home/sprite/fifo", "/dev/zero", "/home/sprite/zero"} {
			_, _, err := m.ReadFile(t.Context(), []string{guest.Home, "/dev"}, path, 100)
			refused(t, "read "+path, err, guest.ErrUnreadable)
		}
	}},
	{Name: "what the sandbox's user may not read is unreadable", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("mkdir ~/closed && echo x > ~/closed/f && echo y > ~/locked && chmod 0 ~/closed ~/locked")
		_, _, err := m.ReadFile(t.Context(), home, "/home/sprite/locked", 100)
		refused(t, "read a locked file", err, guest.ErrUnreadable)
		_, _, err = m.ReadFile(t.Context(), home, "/home/sprite/closed/f", 100)
		refused(t, "read below a closed directory", err, guest.ErrUnreadable)
		_, _, err = m.List(t.Context(), home, "/home/sprite/closed", 10)
		refused(t, "list a closed directory", err, guest.ErrUnreadable)
		if m.caps.Root {
			_, _, err = m.ReadFile(t.Context(), []string{"/etc"}, "/etc/shadow", 100)
			refused(t, "read /etc/shadow", err, guest.ErrUnreadable)
			err = m.WriteFile(t.Context(), []string{"/etc"}, "/etc/passwd", []byte("x"), 0o644)
			refused(t, "write /etc/passwd", err, guest.ErrUnreadable)
		}
	}},
	{Name: "large files come in part when asked, and whole as a stream", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("head -c 5000000 /dev/zero | tr '\\0' z > ~/big")
		data, size, err := m.ReadFile(t.Context(), home, "/home/sprite/big", 1000)
		if err != nil || len(data) != 1000 || size != 5000000 {
			t.Errorf("read: %d of %d %v", len(data), size, err)
		}
		r, size, err := m.OpenFile(t.Context(), home, "/home/sprite/big")
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		defer r.Close()
		all, err := io.ReadAll(r)
		if err != nil || len(all) != 5000000 || size != 5000000 || bytes.Count(all, []byte("z")) != 5000000 {
			t.Errorf("stream: %d of %d %v", len(all), size, err)
		}
	}},
	{Name: "a listing is bounded and sorted, directories first", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("mkdir -p ~/l/zdir ~/l/.hidden && cd ~/l && echo 12345 > file && chmod 640 file && ln -s file link && mkfifo pipe")
		entries, more, err := m.List(t.Context(), home, "/home/sprite/l", 100)
		if err != nil || more {
			t.Fatalf("list: %v %v", more, err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name+":"+e.Type)
			if e.Name == "file" && (e.Size != 6 || e.Mode != 0o640 || e.ModTime.IsZero()) {
				t.Errorf("file: %+v", e)
			}
			if e.Name == "link" && (e.Target != "file" || e.Mode&fs.ModeSymlink == 0) {
				t.Errorf("link: %+v", e)
			}
		}
		equal(t, "list", strings.Join(got, " "), ".hidden:directory zdir:directory file:file link:symlink pipe:other")
		m.must("mkdir ~/many && cd ~/many && seq -f f%05g 1 5000 | xargs touch && mkdir z")
		entries, more, err = m.List(t.Context(), home, "/home/sprite/many", 3)
		if err != nil || !more || len(entries) != 3 || entries[0].Name != "z" || entries[1].Name != "f00001" || entries[2].Name != "f00002" {
			t.Errorf("bounded list: %v %v %v", entries, more, err)
		}
		_, _, err = m.List(t.Context(), home, "/home/sprite/l/file", 3)
		refused(t, "list a file", err, guest.ErrNotADir)
		_, _, err = m.List(t.Context(), home, "/home/sprite/none", 3)
		refused(t, "list what is not there", err, guest.ErrNotFound)
		_, _, err = m.List(t.Context(), home, "/etc", 3)
		refused(t, "list /etc", err, guest.ErrOutside)
	}},
	{Name: "writes make their directories, replace whole files and follow no link out", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		write := func(path string) error {
			return m.WriteFile(t.Context(), home, path, []byte("new\n"), 0o640)
		}
		for _, path := range []string{"/home/sprite/w/x/y", "/home/sprite/.managoat/c/1/settings.json"} {
			if err := write(path); err != nil {
				t.Errorf("write %s: %v", path, err)
			}
		}
		equal(t, "modes", m.must("stat -c '%a %U %n' ~/w ~/w/x ~/w/x/y ~/.managoat ~/.managoat/c/1 ~/.managoat/c/1/settings.json"),
			"755 sprite /home/sprite/w\n755 sprite /home/sprite/w/x\n640 sprite /home/sprite/w/x/y\n700 sprite /home/sprite/.managoat\n"+
				"700 sprite /home/sprite/.managoat/c/1\n640 sprite /home/sprite/.managoat/c/1/settings.json\n")
		m.must("mkdir /tmp/out ~/dir; ln -s /tmp/out ~/out; ln -s /tmp/out/new ~/dangling; echo old > ~/real; ln -s real ~/link; ln -s /tmp/none ~/nodir")
		refused(t, "write through a link to a directory outside", write("/home/sprite/out/f"), guest.ErrOutside)
		refused(t, "write outside", write("/tmp/out/f"), guest.ErrOutside)
		refused(t, "write outside by ..", write("/home/sprite/../../tmp/out/f"), guest.ErrOutside)
		refused(t, "write below a dangling link", write("/home/sprite/nodir/f"), guest.ErrNotFound)
		refused(t, "write over a directory", write("/home/sprite/dir"), guest.ErrIsADir)
		refused(t, "write below a file", write("/home/sprite/real/f"), guest.ErrNotADir)
		refused(t, "a file too large", m.WriteFile(t.Context(), home, "/home/sprite/huge", make([]byte, 65<<20), 0o600), guest.ErrTooLarge)
		for _, path := range []string{"/home/sprite/dangling", "/home/sprite/link"} {
			if err := write(path); err != nil {
				t.Errorf("write over a link %s: %v", path, err)
			}
		}
		equal(t, "after", m.must("ls -A /tmp/out; cat ~/real; cat ~/link ~/dangling; ls -A ~ | grep '^.managoat-' || true"), "old\nnew\nnew\n")
	}},
	{Name: "directories are made where they may be", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("mkdir ~/real /tmp/out; ln -s real ~/link; ln -s /tmp/out ~/out")
		real, err := m.Mkdir(t.Context(), home, "/home/sprite/link/new/deep", 0o700)
		if err != nil || real != "/home/sprite/real/new/deep" {
			t.Errorf("mkdir: %s %v", real, err)
		}
		if _, err := m.Mkdir(t.Context(), home, "/home/sprite/link/new/deep", 0o700); err != nil {
			t.Errorf("mkdir again: %v", err)
		}
		_, err = m.Mkdir(t.Context(), home, "/home/sprite/out/new", 0o700)
		refused(t, "mkdir outside", err, guest.ErrOutside)
		equal(t, "made", m.must("stat -c %a ~/real/new/deep; ls /tmp/out"), "700\n")
	}},
	{Name: "removing a tree follows no link and what is gone is success", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("mkdir -p ~/t/a/b /tmp/out && echo x > ~/t/a/b/f && echo y > /tmp/out/kept && ln -s /tmp/out ~/t/a/link && ln -s /tmp/out ~/top && mkfifo ~/t/p")
		m.must("cd ~/t && mkdir ro none && touch ro/f none/f && chmod 500 ro && chmod 0 none")
		for _, path := range []string{"/home/sprite/t", "/home/sprite/t", "/home/sprite/top", "/home/sprite/none/deeper"} {
			if err := m.Remove(t.Context(), home, path); err != nil {
				t.Errorf("remove %s: %v", path, err)
			}
		}
		refused(t, "remove outside", m.Remove(t.Context(), home, "/tmp/out/kept"), guest.ErrOutside)
		refused(t, "remove by ..", m.Remove(t.Context(), home, "/home/sprite/.."), guest.ErrBadPath)
		equal(t, "left", m.must("ls ~; cat /tmp/out/kept"), "y\n")
	}},
	{Name: "a template is copied as files and directories, without what it links to", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must(`mkdir -p ~/tpl/sub/empty /tmp/out ~/dst && cd ~/tpl && echo one > a && chmod 600 a && echo two > sub/b && chmod 755 sub/b && chmod 700 sub
			ln -s /etc/passwd link; ln -s /tmp/out dirlink; mkfifo pipe; echo secret > /tmp/out/s; ln -s tpl ~/linked; echo old > ~/dst/a`)
		if err := m.CopyTree(t.Context(), home, "/home/sprite/tpl", "/home/sprite/dst"); err != nil {
			t.Fatalf("copy: %v", err)
		}
		equal(t, "copied", m.must("cd ~/dst && find . -mindepth 1 -printf '%P %m\\n' | sort; cat a sub/b"),
			"a 600\nsub 700\nsub/b 755\nsub/empty 755\none\ntwo\n")
		for _, from := range []string{"/home/sprite/linked", "/home/sprite/none", "/home/sprite/none/deeper", "/home/sprite/tpl/a"} {
			if err := m.CopyTree(t.Context(), home, from, "/home/sprite/dst2"); err != nil {
				t.Errorf("copy %s: %v", from, err)
			}
		}
		equal(t, "nothing copied", m.must("ls -A ~/dst2 2>/dev/null || true"), "")
		m.must("mkdir ~/bad && echo x > ~/bad/f && chmod 0 ~/bad/f")
		refused(t, "an unreadable template", m.CopyTree(t.Context(), home, "/home/sprite/bad", "/home/sprite/dst3"), guest.ErrUnreadable)
		refused(t, "copy to outside", m.CopyTree(t.Context(), home, "/home/sprite/tpl", "/tmp/out/x"), guest.ErrOutside)
		refused(t, "copy into itself", m.CopyTree(t.Context(), home, "/home/sprite/tpl", "/home/sprite/tpl/sub/x"), guest.ErrBadPath)
	}},
	{Name: "names of any bytes are listed and read", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		names := []string{"with space", "quote\"'", "back\\slash", "new\nline", "tab\t", "-rf", "漢字", "🐐"}
		for i, n := range names {
			if err := m.WriteFile(t.Context(), home, "/home/sprite/n/"+n, []byte(fmt.Sprint(i)), 0o600); err != nil {
				t.Errorf("write %q: %v", n, err)
			}
			if data, _, err := m.ReadFile(t.Context(), home, "/home/sprite/n/"+n, 10); err != nil || string(data) != fmt.Sprint(i) {
				t.Errorf("read %q: %q %v", n, data, err)
			}
		}
		if entries, _, err := m.List(t.Context(), home, "/home/sprite/n", 100); err != nil || len(entries) != len(names) {
			t.Errorf("list: %d %v", len(entries), err)
		}
	}},
	{Name: "the certificate bundle can be written before anything runs, and nothing else as root", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		if err := m.WriteRootFile(t.Context(), guest.CABundle, []byte("PEM\n"), 0o644); err != nil {
			t.Fatalf("write: %v", err)
		}
		equal(t, "bundle", m.must("cat "+guest.CABundle), "PEM\n")
		refused(t, "write as root elsewhere", m.WriteRootFile(t.Context(), "/usr/bin/true", []byte("x"), 0o755), guest.ErrOutside)
		if m.caps.Root {
			equal(t, "owner", m.must("stat -c '%U %a' "+guest.CABundle), "root 644\n")
			if r := m.sh("echo x > " + guest.CABundle); r.Code == 0 {
				t.Errorf("the sandbox's user could write the bundle")
			}
		}
	}},
}
