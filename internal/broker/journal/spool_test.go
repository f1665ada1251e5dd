package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

func open(t *testing.T, dir string, bound int64) *Spool {
	t.Helper()
	s, err := OpenSpool(dir, bound, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func add(t *testing.T, s *Spool, text string) {
	t.Helper()
	if err := s.Append(func(dropped int64) ([]byte, error) { return fmt.Appendf(nil, "%s/%d", text, dropped), nil }); err != nil {
		t.Fatal(err)
	}
}

func next(t *testing.T, s *Spool, after uint64) ([]string, uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	rows, last, err := s.Next(ctx, after)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range rows {
		out = append(out, string(r))
	}
	return out, last
}

func TestRowsSurviveTheEndOfTheProcessUntilTheyAreAcknowledged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, 1<<20)
	add(t, s, "a")
	add(t, s, "b")
	add(t, s, "c")
	if err := s.Ack(1); err != nil {
		t.Fatal(err)
	}
	// Not closed: a killed process closes nothing, and may leave half a row.
	f, err := os.OpenFile(s.path(1), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("half a r"); err != nil {
		t.Fatal(err)
	}
	f.Close()

	s = open(t, dir, 1<<20)
	add(t, s, "d")
	rows, last := next(t, s, 0)
	if got := strings.Join(rows, " "); got != "b/0 c/0 d/0" || last != 4 {
		t.Errorf("got %q up to %d", got, last)
	}
	if err := s.Ack(last); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, 1<<20)
	add(t, s, "e")
	if rows, last := next(t, s, 0); len(rows) != 1 || rows[0] != "e/0" || last != 5 {
		t.Errorf("after all was acknowledged: %q up to %d", rows, last)
	}
}

func TestRowsAreReadAgainFromAnyNumberThatIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), 64<<20)
	long := strings.Repeat("x", 10<<10)
	const n = 500 // over several segments
	for i := range n {
		add(t, s, fmt.Sprint(i+1, " ", long))
	}
	if len(s.segments) < 3 {
		t.Fatalf("%d segments, the test wants several", len(s.segments))
	}
	for _, after := range []uint64{0, 3, 499, 100, 250, 0} {
		rows, last := next(t, s, after)
		if want := fmt.Sprint(after+1, " "); !strings.HasPrefix(rows[0], want) || last != after+uint64(len(rows)) {
			t.Errorf("after %d: %.10q up to %d", after, rows[0], last)
		}
	}
	if err := s.Ack(300); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(s.dir, "*"+segmentSuffix))
	if err != nil || len(files) != len(s.segments) || s.segments[0].first == 1 {
		t.Errorf("segments after the acknowledgement: %q, %v", files, err)
	}
	if rows, _ := next(t, s, 0); !strings.HasPrefix(rows[0], "301 ") {
		t.Errorf("after the acknowledged: %.10q", rows[0])
	}
}

func TestAFullSpoolDropsNewRowsAndSaysHowMany(t *testing.T) {
	t.Parallel()
	const bound = 3 * segmentBytes
	s := open(t, t.TempDir(), bound)
	row := strings.Repeat("x", 60<<10)
	for range 100 {
		add(t, s, row)
	}
	if s.size > bound {
		t.Errorf("the spool holds %d bytes of %d", s.size, bound)
	}
	kept := s.next - 1
	if kept == 100 || kept < 40 {
		t.Fatalf("%d rows kept", kept)
	}
	if err := s.Ack(kept); err != nil {
		t.Fatal(err)
	}
	add(t, s, "first again")
	add(t, s, "second")
	rows, _ := next(t, s, 0)
	if want := fmt.Sprintf("first again/%d", 100-kept); len(rows) != 2 || rows[0] != want || rows[1] != "second/0" {
		t.Errorf("got %q, want %q", rows, want)
	}
}

func TestASteadyStreamDoesNotFillTheSpoolWhileItIsRead(t *testing.T) {
	t.Parallel()
	const bound = 4 * segmentBytes
	s := open(t, t.TempDir(), bound)
	const n = 2000
	var wg sync.WaitGroup
	got := 0
	// The reader is always a little behind: there is never a moment at which all is acknowledged.
	wg.Go(func() {
		for after := uint64(0); got < n-1; {
			rows, last := next(t, s, after)
			got += len(rows)
			after = last
			if err := s.Ack(last - 1); err != nil {
				t.Error(err)
			}
			got, after = got-1, last-1
		}
	})
	row := strings.Repeat("x", 8<<10)
	for range n {
		for {
			s.mu.Lock()
			room := s.size < bound/2
			s.mu.Unlock()
			if room {
				break
			}
			select {
			case <-t.Context().Done():
				t.Fatal("the spool stays full")
			case <-time.After(time.Millisecond):
			}
		}
		add(t, s, row)
	}
	wg.Wait()
	if s.dropped != 0 {
		t.Errorf("%d rows dropped", s.dropped)
	}
}

func TestNextWaitsForARowAndForNothingAfterClose(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, last, err := s.Next(ctx, 0); !errors.Is(err, context.Canceled) || last != 0 {
		t.Errorf("Next of nothing: %d, %v", last, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if rows, _ := next(t, s, 0); len(rows) != 1 {
			t.Errorf("got %q", rows)
		}
	})
	add(t, s, "a")
	wg.Wait()
	wg.Go(func() {
		if _, _, err := s.Next(t.Context(), 1); !errors.Is(err, ErrClosed) {
			t.Errorf("Next of a closed spool: %v", err)
		}
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := s.Append(func(int64) ([]byte, error) { return []byte("x"), nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("Append to a closed spool: %v", err)
	}
}

func TestWhatIsNotOneLineIsNoRow(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), 1<<20)
	for _, bad := range []string{"a\nb", strings.Repeat("x", maxRow+1)} {
		if err := s.Append(func(int64) ([]byte, error) { return []byte(bad), nil }); err == nil {
			t.Errorf("%.10q was kept", bad)
		}
	}
}

// Machines choose these texts, and PostgreSQL takes no NUL.
func TestARowsTextsAreFitToBeStored(t *testing.T) {
	t.Parallel()
	r := Request{ID: uuid.New(), Host: "a\x00b\xff" + strings.Repeat("é", 400), Method: "GET\r\n", Error: strings.Repeat("e", 9999)}
	r.Clean()
	if strings.ContainsAny(r.Host+r.Method, "\x00\r\n") || len(r.Host) > 3*maxName || len(r.Error) != maxError || !strings.HasPrefix(r.Host, "a\uFFFDb") {
		t.Errorf("%+v", r)
	}
	u := Usage{ModelRequested: "m\x00", ModelAnswered: "\x1b[31m"}
	u.Clean()
	if strings.ContainsAny(u.ModelRequested+u.ModelAnswered, "\x00\x1b") {
		t.Errorf("%+v", u)
	}
}
