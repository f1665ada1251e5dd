package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

var output = []Check{
	{Name: "streams come apart and in the order they were printed", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		id := m.begin(guest.Exec{Argv: []string{"sh", "-c", "for i in 1 2 3; do echo out$i; sleep 0.05; echo err$i >&2; sleep 0.05; done"}})
		var seen []string
		at := map[guest.Stream]int64{}
		exit, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error {
			seen = append(seen, fmt.Sprintf("%s:%s", c.Stream, c.Data))
			if c.Offset != at[c.Stream] || c.Dropped != 0 || time.Since(c.At) > time.Minute {
				t.Errorf("chunk %+v, want offset %d", c, at[c.Stream])
			}
			at[c.Stream] += int64(len(c.Data))
			return nil
		})
		if err != nil {
			t.Fatalf("follow: %v", err)
		}
		want := "stdout:out1\n stderr:err1\n stdout:out2\n stderr:err2\n stdout:out3\n stderr:err3\n"
		if got := strings.Join(seen, " "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if exit.StdoutBytes != 15 || exit.StderrBytes != 15 {
			t.Errorf("exit counts %d and %d bytes", exit.StdoutBytes, exit.StderrBytes)
		}
	}},
	{Name: "a log of 100 MB keeps its head and its END and counts the rest", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		r := m.sh("echo BEGIN; head -c 100000000 /dev/zero | tr '\\0' x; echo END")
		if !strings.HasPrefix(r.out, "BEGIN\n") || !strings.HasSuffix(r.out, "xEND\n") {
			t.Errorf("begins %q, ends %q", head(r.out), tail(r.out))
		}
		if r.Code != 0 || r.StdoutBytes != 100000010 {
			t.Errorf("exit: %+v", r.Exit)
		}
		if len(r.out) < 900_000 || len(r.out) > 1<<20 {
			t.Errorf("%d bytes were kept of a spool of 1 MiB", len(r.out))
		}
		id := m.begin(guest.Exec{Argv: []string{"sh", "-c", "head -c 10000000 /dev/zero; echo END"}, SpoolBytes: 65536})
		eventually(t, "exit", func() bool {
			s, err := m.Status(t.Context(), id)
			return err == nil && s.Exit != nil
		})
		var got, dropped int64
		if _, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error {
			if c.Offset != got+dropped+c.Dropped {
				t.Errorf("a chunk at %d after %d kept and %d dropped", c.Offset, got, dropped+c.Dropped)
			}
			got += int64(len(c.Data))
			dropped += c.Dropped
			return nil
		}); err != nil {
			t.Fatalf("follow: %v", err)
		}
		equal(t, "kept and dropped", got+dropped, 10000004)
		if dropped == 0 || got > 65536 {
			t.Errorf("%d bytes kept, %d dropped with a bound of 65536", got, dropped)
		}
	}},
	{Name: "100 MB of protocol arrive whole, through a spool of a few", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		id := m.begin(guest.Exec{Argv: []string{"sh", "-c", "head -c 100000000 /dev/zero; echo END"}, Spool: guest.SpoolProtocol, SpoolBytes: 1 << 20})
		var got, acked int64
		var last []byte
		exit, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error {
			if c.Offset != got || c.Dropped != 0 {
				return fmt.Errorf("chunk at %d after %d bytes", c.Offset, got)
			}
			got += int64(len(c.Data))
			last = append(last, c.Data...)
			last = last[max(0, len(last)-4):]
			if got-acked < 256<<10 {
				return nil
			}
			acked = got
			return m.Ack(t.Context(), id, guest.Offsets{Stdout: got})
		})
		if err != nil || exit.Code != 0 || got != 100000004 || string(last) != "END\n" {
			t.Errorf("%d bytes, last %q, %+v, %v", got, last, exit, err)
		}
	}},
	{Name: "a protocol spool holds its command at the bound until somebody acknowledges", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		id := m.begin(guest.Exec{Argv: []string{"sh", "-c", "head -c 3000000 /dev/zero; touch /tmp/printed"}, Spool: guest.SpoolProtocol, SpoolBytes: 1 << 20})
		var got int64
		full := errors.New("enough")
		if _, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error {
			if got += int64(len(c.Data)); got >= 1<<20 {
				return full
			}
			return nil
		}); !errors.Is(err, full) {
			t.Fatalf("follow: %v", err)
		}
		if r := m.sh("sleep 0.3; test -e /tmp/printed"); r.Code == 0 {
			t.Errorf("the command was not held")
		}
		// Whoever comes later starts where it left off; nothing is there twice, nothing is missing.
		var again int64
		exit, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error {
			if c.Offset != again {
				return fmt.Errorf("chunk at %d after %d bytes", c.Offset, again)
			}
			again += int64(len(c.Data))
			return m.Ack(t.Context(), id, guest.Offsets{Stdout: again})
		})
		if err != nil || exit.Code != 0 || again != 3000000 {
			t.Errorf("%d bytes, %+v, %v", again, exit, err)
		}
	}},
	{Name: "bytes come through as they are", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		want := make([]byte, 200_000)
		for i := range want {
			want[i] = byte(i*7 + i>>8)
		}
		if err := m.WriteFile(t.Context(), []string{"/tmp"}, "/tmp/bytes", want, 0o600); err != nil {
			t.Fatalf("write: %v", err)
		}
		r := m.sh("cat /tmp/bytes; cat /tmp/bytes >&2")
		if !bytes.Equal([]byte(r.out), want) || !bytes.Equal([]byte(r.err), want) {
			t.Errorf("%d and %d bytes came, not those that were printed", len(r.out), len(r.err))
		}
	}},
	{Name: "a character that is printed in two halves keeps both", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		if r := m.sh(`printf '\342'; sleep 0.05; printf '\200\224'`); r.out != "—" {
			t.Errorf("got %q", r.out)
		}
	}},
	{Name: "the first byte does not wait for the second", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		id := m.begin(guest.Exec{Argv: []string{"sh", "-c", "printf x; sleep 9997"}})
		seen := errors.New("seen")
		began := time.Now()
		if _, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error { return seen }); !errors.Is(err, seen) {
			t.Errorf("follow: %v", err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("the first byte took %s", d)
		}
	}},
	{Name: "the full output lies in a file of the machine, up to its bound", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		log := guest.Home + "/.managoat/logs/c/1.log"
		r := m.exec(guest.Exec{Argv: []string{"sh", "-c", "seq 1 100000; echo END"}, SpoolBytes: 4096, LogPath: log})
		if len(r.out) > 4096 {
			t.Errorf("the spool kept %d bytes", len(r.out))
		}
		equal(t, "log", m.must("tail -n 2 "+log+"; wc -l < "+log), "100000\nEND\n100001\n")
		equal(t, "modes", m.must("stat -c '%a %U' "+log+" $(dirname "+log+")"), "600 sprite\n700 sprite\n")
		m.exec(guest.Exec{Argv: []string{"seq", "1", "100000"}, LogPath: log, LogBytes: 1000})
		if got := m.must("cat " + log); !strings.HasPrefix(got, "1\n2\n") || len(got) > 1100 || !strings.Contains(got, "[587895 more bytes were not kept]") {
			t.Errorf("a bounded log: %d bytes, ends %q", len(got), tail(got))
		}
	}},
}

func head(s string) string { return s[:min(len(s), 40)] }
func tail(s string) string { return s[max(0, len(s)-80):] }
