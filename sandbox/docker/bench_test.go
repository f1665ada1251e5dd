package docker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"managoat/sandbox"
	"managoat/sandbox/conformance/conformancetest"
	"managoat/sandbox/docker/dockertest"
	"managoat/sandbox/guest"
	"managoat/sandbox/local"
)

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// up makes a machine and returns the connection to its guest, which has answered.
func up(b *testing.B, p sandbox.Provider, name string) *guest.Client {
	b.Helper()
	if _, err := p.Create(b.Context(), sandbox.Spec{Name: name, Hostname: "box"}); err != nil {
		b.Fatal(err)
	}
	if err := p.Start(b.Context(), name); err != nil {
		b.Fatal(err)
	}
	conn, err := p.Guest(b.Context(), name)
	if err != nil {
		b.Fatal(err)
	}
	g, err := guest.Dial(b.Context(), conn, guest.RoleServer)
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func down(b *testing.B, p sandbox.Provider, name string) {
	b.Helper()
	if err := p.Destroy(context.WithoutCancel(b.Context()), name); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkContainerStart compares a machine's creation and start, until its guest has answered, with a bare container's
// creation and start, by turns.
func BenchmarkContainerStart(b *testing.B) {
	p := provider(b)
	c, err := dockertest.Shared(b).Client()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	const each = 7
	bare := func(i int) time.Duration {
		began := time.Now()
		made, err := c.ContainerCreate(b.Context(), client.ContainerCreateOptions{
			Name: fmt.Sprintf("bare-%d", i), Config: &container.Config{Image: dockertest.Image, Cmd: []string{"sleep", "600"}}, HostConfig: &container.HostConfig{NetworkMode: "none"},
		})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.ContainerStart(b.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		if _, err := c.ContainerRemove(b.Context(), made.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			b.Fatal(err)
		}
		return took
	}
	up(b, p, "bench-first").Close() // prepares the image
	down(b, p, "bench-first")
	for b.Loop() {
		var bares, ours []time.Duration
		for i := range each {
			bares = append(bares, bare(i))
			name := fmt.Sprintf("bench-%d", i)
			began := time.Now()
			g := up(b, p, name)
			ours = append(ours, time.Since(began))
			g.Close()
			down(b, p, name)
		}
		b.ReportMetric(float64(median(ours).Microseconds())/1000, "ms/start")
		b.ReportMetric(float64(median(bares).Microseconds())/1000, "ms/bare")
		b.ReportMetric(float64(median(ours))/float64(median(bares)), "x-bare")
	}
}

// BenchmarkContainerExec compares a command that does nothing, start to exit, with the same in a local machine, by turns.
func BenchmarkContainerExec(b *testing.B) {
	p := provider(b)
	l, err := local.New(local.Options{Dir: b.TempDir(), GuestBinary: conformancetest.GuestBinary(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	contained, near := up(b, p, "bench-exec"), up(b, l, "bench-exec")
	defer down(b, p, "bench-exec")
	defer down(b, l, "bench-exec")
	const each = 200
	n := 0
	run := func(g *guest.Client) time.Duration {
		n++
		began := time.Now()
		if _, _, exit, err := g.Run(b.Context(), guest.Exec{ID: fmt.Sprint(n), Argv: []string{"true"}}); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
		return time.Since(began)
	}
	for b.Loop() {
		var ours, locals []time.Duration
		for range each {
			locals = append(locals, run(near))
			ours = append(ours, run(contained))
		}
		b.ReportMetric(float64(median(ours).Microseconds())/1000, "ms/command")
		b.ReportMetric(float64(median(locals).Microseconds())/1000, "ms/local")
		b.ReportMetric(float64((median(ours)-median(locals)).Microseconds())/1000, "ms-more")
	}
}

// BenchmarkContainersAtOnce makes and starts many machines at once, and has each run a command.
func BenchmarkContainersAtOnce(b *testing.B) {
	const many = 30
	p := provider(b)
	for b.Loop() {
		began := time.Now()
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				name := fmt.Sprintf("many-%d", i)
				g := up(b, p, name)
				defer g.Close()
				if out, _, exit, err := g.Run(b.Context(), guest.Exec{ID: "hello", Argv: []string{"echo", name}}); err != nil || exit.Code != 0 || string(out) != name+"\n" {
					b.Errorf("%s: %q %+v %v", name, out, exit, err)
				}
			})
		}
		all.Wait()
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-all")
		for i := range many {
			down(b, p, fmt.Sprintf("many-%d", i))
		}
	}
}
