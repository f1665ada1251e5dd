package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// recorded runs argv with a tag of its own and returns what it printed and what was recorded.
func (m *machine) recorded(e guest.Exec, want int) (result, []guest.Record) {
	m.t.Helper()
	tag := ids()
	e.Env = map[string]string{guest.RecordTag: tag, "SHELL": guest.Shell}
	r := m.exec(e)
	ctx, cancel := context.WithTimeout(m.t.Context(), 20*time.Second)
	defer cancel()
	var records []guest.Record
	enough := errors.New("enough")
	if want > 0 {
		err := m.Records(ctx, tag, 0, func(r guest.Record) error {
			if records = append(records, r); len(records) == want {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			m.t.Errorf("%v: %d records: %v", e.Argv, len(records), err)
		}
	}
	return r, records
}

var records = []Check{
	{Name: "the recording shell changes nothing and tells everything", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		for _, c := range []struct{ name, script string }{
			{"streams and code", "echo out; echo err >&2; exit 3"},
			{"a signal", "echo before; kill -TERM $$"},
			{"arguments", `printf '%s|' "$0" "$@"`},
			{"input", "read x; echo \"got:$x $?\""},
			{"a shell below", "bash -c 'sh -c \"echo deep; exit 7\"'; $SHELL -c 'exit 8'; echo $?"},
			{"a large output", "seq 1 200000; echo END"},
		} {
			real := m.exec(guest.Exec{Argv: []string{"bash", "-c", c.script, "a0", "a b"}, Env: map[string]string{"SHELL": guest.Shell}, SpoolBytes: 4 << 20})
			r, records := m.recorded(guest.Exec{Argv: []string{guest.Shell, "-c", c.script, "a0", "a b"}, SpoolBytes: 4 << 20}, 1)
			if r.out != real.out || r.err != real.err || r.Code != real.Code || r.Signal != real.Signal {
				t.Errorf("%s: %q %q %+v, with the real shell %q %q %+v", c.name, head(r.out), head(r.err), r.Exit, head(real.out), head(real.err), real.Exit)
			}
			if len(records) != 1 {
				continue
			}
			rec := records[0]
			if rec.Code != real.Code || rec.Signal != real.Signal || rec.Lost || rec.Output != "pipe" || rec.Dir != guest.Home || rec.Duration <= 0 || time.Since(rec.Start) > time.Minute {
				t.Errorf("%s: recorded %+v", c.name, rec)
			}
			if len(rec.Argv) < 3 || rec.Argv[2] != c.script {
				t.Errorf("%s: recorded arguments %q", c.name, rec.Argv)
			}
			if rec.Stdout.Bytes != int64(len(real.out)) || !strings.HasPrefix(real.out, string(rec.Stdout.Head)) || !strings.HasSuffix(real.out, string(rec.Stdout.Tail)) {
				t.Errorf("%s: recorded %d bytes of output, %d were printed", c.name, rec.Stdout.Bytes, len(real.out))
			}
			if string(rec.Stderr.Head) != real.err {
				t.Errorf("%s: recorded %q of standard error, %q was printed", c.name, rec.Stderr.Head, real.err)
			}
		}
	}},
	{Name: "files, terminals and shared pipes are recorded as they are used", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		script := "echo out; echo err >&2; exit 3"
		r, records := m.recorded(guest.Exec{Argv: []string{"sh", "-c", "echo old > /tmp/f; " + guest.Shell + " -c '" + script + "' >> /tmp/f 2>&1; echo $?; cat /tmp/f"}}, 1)
		equal(t, "a file", r.out, "3\nold\nout\nerr\n")
		if len(records) == 1 && (records[0].Output != "file" || string(records[0].Stdout.Head) != "out\nerr\n" || records[0].Code != 3) {
			t.Errorf("a file: %+v", records[0])
		}
		r, records = m.recorded(guest.Exec{Argv: []string{"sh", "-c", guest.Shell + " -c '" + script + "' 2>&1 | cat"}}, 1)
		equal(t, "one pipe for both", r.out, "out\nerr\n")
		if len(records) == 1 && (string(records[0].Stdout.Head) != "out\nerr\n" || records[0].Stderr.Bytes != 0) {
			t.Errorf("one pipe for both: %+v", records[0])
		}
		r, records = m.recorded(guest.Exec{TTY: true, Argv: []string{guest.Shell, "-c", "test -t 0 && test -t 1 && test -t 2 && stty size && " + script}}, 1)
		if !strings.HasSuffix(r.out, "out\r\nerr\r\n") || r.Code != 3 {
			t.Errorf("a terminal: %q %+v", r.out, r.Exit)
		}
		if len(records) == 1 && (records[0].Output != "terminal" || string(records[0].Stdout.Head) != r.out || records[0].Code != 3) {
			t.Errorf("a terminal: %+v", records[0])
		}
	}},
	{Name: "a background job holds neither the shell nor its record, and its output still arrives", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		r, records := m.recorded(guest.Exec{Argv: []string{"bash", "-c", `t0=$(date +%s%N)
			{ $SHELL -c '(sleep 2; echo late) & echo now'; date +%s%N > /tmp/end; } | cat
			t2=$(date +%s%N); echo $(( ($(cat /tmp/end) - t0) / 1000000 )) $(( (t2 - t0) / 1000000 ))`}}, 1)
		var shell, all int
		if _, err := fmt.Sscanf(r.out, "now\nlate\n%d %d\n", &shell, &all); err != nil || shell > 1900 || all < 2000 {
			t.Errorf("the shell took %d ms, its output %d: %q", shell, all, r.out)
		}
		if len(records) == 1 && (string(records[0].Stdout.Head) != "now\n" || records[0].Duration > 1900*time.Millisecond) {
			t.Errorf("recorded %+v", records[0])
		}
	}},
	{Name: "a recorder that is killed leaves a record that says so", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		_, records := m.recorded(guest.Exec{Argv: []string{"bash", "-c", guest.Shell + " -c 'sleep 9994' & until pgrep -xf 'sleep 9994' >/dev/null; do sleep 0.05; done; kill -9 $!; wait $!; true"}}, 1)
		if len(records) == 1 && (!records[0].Lost || records[0].Code != -1 || records[0].Argv[2] != "sleep 9994" || records[0].Duration <= 0) {
			t.Errorf("recorded %+v", records[0])
		}
		eventually(t, "its command ends", func() bool { return m.running("sleep 9994") == 0 })
	}},
	{Name: "without a tag the recording shell is the real one", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		equal(t, "shell", m.must(guest.Shell+" -c 'readlink /proc/$$/exe; true'"), m.must("bash -c 'readlink /proc/$$/exe; true'"))
		equal(t, "account's shell", m.must("getent passwd sprite | cut -d: -f7"), guest.Shell+"\n")
	}},
}
