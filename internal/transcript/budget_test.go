package transcript

import (
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

// One verbose command must not take the server's memory: what comes is read to its end, its tail is kept, and the gap is
// counted.
func TestAFloodOfOutputTakesLittleMemoryAndKeepsItsEnd(t *testing.T) {
	// Not parallel: it measures the heap.
	const total, chunk = 256 << 20, 32 << 10
	text, budget := gate(token).Stream(), NewBudget(64<<10)
	piece := []byte(strings.Repeat("y\n", chunk/2))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	live, peak := 0, uint64(0)
	for sent := 0; sent < total; sent += chunk {
		live += len(budget.Write(text.Write(piece)))
		if sent%(32<<20) == 0 {
			runtime.GC()
			runtime.ReadMemStats(&after)
			peak = max(peak, after.HeapAlloc)
		}
	}
	budget.Write(text.WriteString("THE END"))
	output, truncated := budget.Output()
	if !truncated || !strings.HasSuffix(output, "THE END") || !strings.HasPrefix(output, "y\n") || len(output) > 100<<10 {
		t.Errorf("%d bytes are kept, truncated %v", len(output), truncated)
	}
	if live != 32<<10 || budget.Total() != total+7 {
		t.Errorf("%d bytes live, %d in all", live, budget.Total())
	}
	if grown := int64(peak) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestABudgetCutsBetweenCharacters(t *testing.T) {
	t.Parallel()
	for limit := 2; limit < 40; limit++ {
		for _, chunk := range []int{1, 3, 7, 1000} {
			b := NewBudget(limit)
			text := strings.Repeat("é—🙂", 40)
			for rest := text; rest != ""; {
				n := runeCut(rest, chunk)
				if n == 0 {
					n = runeStart(rest, 1)
				}
				b.Write(rest[:n])
				rest = rest[n:]
			}
			got, truncated := b.Output()
			if !utf8.ValidString(got) || !truncated || b.Total() != int64(len(text)) {
				t.Fatalf("limit %d: %q", limit, got)
			}
			head, tail, _ := strings.Cut(got, "\n… ")
			_, tail, _ = strings.Cut(tail, "…\n")
			if !strings.HasPrefix(text, head) || !strings.HasSuffix(text, tail) || len(head) > limit/2 || len(tail) > limit/2 {
				t.Fatalf("limit %d: head %q, tail %q", limit, head, tail)
			}
		}
	}
}
