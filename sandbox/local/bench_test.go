package local

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"managoat/sandbox/guest"
)

// median of what f measures.
func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// bareStart is the time from starting bubblewrap to the first byte a program in it prints.
func bareStart(b *testing.B) time.Duration {
	b.Helper()
	began := time.Now()
	cmd := exec.Command("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "echo", "up")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	return took
}

// BenchmarkStart compares a machine's creation and start, until its guest has answered, with a bare bubblewrap
// in the same minutes. Each iteration takes the medians of a few of both.
func BenchmarkStart(b *testing.B) {
	p := open(b)
	if _, err := p.Capabilities(b.Context()); err != nil {
		b.Fatal(err)
	}
	const each = 11
	n := 0
	for b.Loop() {
		var bare, ours, stops []time.Duration
		for range each {
			bare = append(bare, bareStart(b))
			name := fmt.Sprintf("bench-%d", n)
			n++
			began := time.Now()
			if _, err := p.Create(b.Context(), spec(name)); err != nil {
				b.Fatal(err)
			}
			c := connect(b, p, name)
			ours = append(ours, time.Since(began))
			c.Close()
			began = time.Now()
			if err := p.Stop(b.Context(), name); err != nil {
				b.Fatal(err)
			}
			stops = append(stops, time.Since(began))
			if err := p.Destroy(b.Context(), name); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(median(ours).Microseconds())/1000, "ms/start")
		b.ReportMetric(float64(median(stops).Microseconds())/1000, "ms/stop")
		b.ReportMetric(float64(median(bare).Microseconds())/1000, "ms/bwrap")
		b.ReportMetric(float64(median(ours))/float64(median(bare)), "x-bwrap")
	}
}

// BenchmarkExec is the time of a command that does nothing, start to exit.
func BenchmarkExec(b *testing.B) {
	p := open(b)
	makeMachine(b, p, spec("exec"))
	c := connect(b, p, "exec")
	const each = 200
	n := 0
	for b.Loop() {
		var bare, ours []time.Duration
		for range each {
			began := time.Now()
			if err := exec.Command("true").Run(); err != nil {
				b.Fatal(err)
			}
			bare = append(bare, time.Since(began))
			n++
			began = time.Now()
			if _, _, exit, err := c.Run(b.Context(), guest.Exec{ID: fmt.Sprint(n), Argv: []string{"true"}}); err != nil || exit.Code != 0 {
				b.Fatal(exit, err)
			}
			ours = append(ours, time.Since(began))
		}
		b.ReportMetric(float64(median(ours).Microseconds())/1000, "ms/command")
		b.ReportMetric(float64(median(bare).Microseconds())/1000, "ms/bare")
		b.ReportMetric(float64(median(ours))/float64(median(bare)), "x-bare")
	}
}

// BenchmarkTunnel compares bytes through a machine's proxy listener with the same bytes over plain loopback.
func BenchmarkTunnel(b *testing.B) {
	const size = 256 << 20
	p := open(b)
	makeMachine(b, p, spec("tunnel"))
	c := connect(b, p, "tunnel")
	conn, err := p.Guest(b.Context(), "tunnel")
	if err != nil {
		b.Fatal(err)
	}
	egress, err := guest.Dial(b.Context(), conn, guest.RoleEgress)
	if err != nil {
		b.Fatal(err)
	}
	send := func(conn net.Conn) {
		defer conn.Close()
		io.CopyN(conn, zeros{}, size)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
		}
		io.Copy(io.Discard, conn)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, _, err := egress.Accept(b.Context())
			if err != nil {
				return
			}
			send(conn)
		}
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	plain := make(chan struct{})
	go func() {
		defer close(plain)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			send(conn)
		}
	}()
	b.Cleanup(func() { egress.Close(); l.Close(); <-done; <-plain })
	fetch := func(port int) []string {
		return []string{"bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d || exit 1; cat <&3 | wc -c", port)}
	}
	for b.Loop() {
		var direct, tunnel []time.Duration
		for i := range 3 {
			began := time.Now()
			argv := fetch(l.Addr().(*net.TCPAddr).Port)
			if out, err := exec.Command(argv[0], argv[1:]...).Output(); err != nil || string(out) != fmt.Sprintln(size) {
				b.Fatal(string(out), err)
			}
			direct = append(direct, time.Since(began))
			began = time.Now()
			out, _, exit, err := c.Run(b.Context(), guest.Exec{ID: fmt.Sprint(time.Now().UnixNano(), i), Argv: fetch(3128)})
			if err != nil || exit.Code != 0 || string(out) != fmt.Sprintln(size) {
				b.Fatal(string(out), exit, err)
			}
			tunnel = append(tunnel, time.Since(began))
		}
		b.ReportMetric(float64(size)/1e6/median(tunnel).Seconds(), "MB/s")
		b.ReportMetric(float64(median(direct))/float64(median(tunnel)), "of-direct")
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// BenchmarkIdle is what a machine costs while nothing runs in it: memory that its control group counts, kernel's included
// and files that can be dropped left out, and what the server's side of its connection takes. 100 machines at once.
func BenchmarkIdle(b *testing.B) {
	const machines = 100
	p := open(b)
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	for b.Loop() {
		before := memory()
		names := make([]string, machines)
		for i := range names {
			names[i] = fmt.Sprintf("idle-%d", i)
			makeMachine(b, p, spec(names[i]))
			sh(b, connect(b, p, names[i]), guest.Sprite, "true") // as after some use
		}
		mine := float64(memory()-before) / machines
		var theirs float64
		for _, name := range names {
			s, err := p.Stats(b.Context(), name)
			if err != nil || s.MemoryBytes == 0 {
				b.Fatal(s, err)
			}
			theirs += float64(s.MemoryBytes) / machines
		}
		b.ReportMetric((mine+theirs)/(1<<20), "MiB/machine")
		b.ReportMetric(mine/(1<<10), "KiB-of-server/machine")
		for _, name := range names {
			if err := p.Destroy(b.Context(), name); err != nil {
				b.Fatal(err)
			}
		}
	}
}
