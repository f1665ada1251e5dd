package stream_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"managoat/db/dbtest"
)

// connect opens a stream the cheapest way a client can: one connection, one small buffer. It returns once the stream stands.
func connect(tb testing.TB, url string) net.Conn {
	tb.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		tb.Fatal(err)
	}
	r := bufio.NewReaderSize(conn, 16)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			tb.Fatal(err)
		}
		if line == "\r\n" {
			return conn
		}
	}
}

// benchAppends is how many rows a benchmark of delivery appends, one after the other.
const benchAppends = 200

// BenchmarkAppendToClient measures from the call that appends a row to the moment its frame is read by each of the
// conversation's clients over HTTP, and checks that none misses a row or sees one twice. Server, clients and PostgreSQL
// share the machine; x-insert is the median in medians of what a bare insert of one row costs here.
func BenchmarkAppendToClient(b *testing.B) {
	for _, clients := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			for b.Loop() {
				d := dbtest.New(b)
				insert := bareInsert(b, d)
				took := appendToClients(b, d, clients)
				b.ReportMetric(float64(took[len(took)/2])/float64(insert), "x-insert")
				b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			}
		})
	}
}

// bareInsert is the median of inserts of one row, each a transaction.
func bareInsert(b *testing.B, d *dbtest.Database) time.Duration {
	conn := d.Owner(b)
	ctx := context.Background()
	if _, err := conn.Exec(ctx, "create table bare (id int, body jsonb)"); err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for i := range benchAppends {
		began := time.Now()
		if _, err := conn.Exec(ctx, "insert into bare values ($1, $2)", i, `{"code": "test", "text": "a row"}`); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// appendToClients returns how long each delivery took, the shortest first.
func appendToClients(b *testing.B, d *dbtest.Database, clients int) []time.Duration {
	p := newProcess(b, d)
	tenantID := d.Account(b)
	id := conversation(b, d, tenantID)
	url := serve(b, p, tenantID, id)
	var began [benchAppends]atomic.Int64 // nanoseconds after start
	took := make([][]time.Duration, clients)
	start := time.Now()
	arrived := make(chan int, clients) // a client has row i
	var reading sync.WaitGroup
	for c := range clients {
		conn := connect(b, url)
		r := bufio.NewReader(conn)
		reading.Go(func() {
			for next := 0; next < benchAppends; {
				line, err := r.ReadSlice('\n')
				if err != nil {
					b.Errorf("client %d: %v", c, err)
					return
				}
				id, ok := bytes.CutPrefix(line, []byte("id: "))
				if !ok {
					continue
				}
				took[c] = append(took[c], time.Since(start)-time.Duration(began[next].Load()))
				if string(bytes.TrimSpace(id)) != strconv.Itoa(next+1) {
					b.Errorf("client %d got row %s instead of %d", c, id, next+1)
					return
				}
				arrived <- next
				next++
			}
		})
	}
	for i := range benchAppends {
		began[i].Store(int64(time.Since(start)))
		if err := p.writer.Append(context.Background(), tenantID, id, notice(i)); err != nil {
			b.Fatal(err)
		}
		for range clients {
			select {
			case got := <-arrived:
				if got != i {
					b.Fatalf("row %d came while %d was awaited", got, i)
				}
			case <-time.After(10 * time.Second):
				b.Fatalf("row %d did not reach every client", i)
			}
		}
	}
	reading.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) != clients*benchAppends {
		b.Fatalf("%d deliveries of %d", len(all), clients*benchAppends)
	}
	return all
}

// maxIdle is what one idle follower may cost the server, in bytes.
const maxIdle = 64 << 10

// idleFollower measures what the process holds for one idle follower over HTTP, its client included.
func idleFollower(tb testing.TB, followers int) int64 {
	tb.Helper()
	d := dbtest.New(tb)
	p := newProcess(tb, d)
	tenantID := d.Account(tb)
	id := conversation(tb, d, tenantID)
	url := serve(tb, p, tenantID, id)
	p.write(tb, tenantID, id, 0, 10)
	connect(tb, url)
	before := held()
	for range followers {
		connect(tb, url)
	}
	return (held() - before) / int64(followers)
}

func held() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

func TestAnIdleFollowerCostsLittle(t *testing.T) {
	// Not parallel: it measures the heap.
	if n := idleFollower(t, 300); n > maxIdle {
		t.Fatalf("an idle follower costs %d bytes", n)
	}
}

func BenchmarkIdleFollower(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(float64(idleFollower(b, 1000))/1024, "KiB/follower")
	}
}
