package docker_test

import (
	"fmt"
	"os"
	"testing"

	"managoat/sandbox"
	"managoat/sandbox/conformance/conformancetest"
	"managoat/sandbox/docker"
	"managoat/sandbox/docker/dockertest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := dockertest.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func provider(tb testing.TB) *docker.Provider {
	tb.Helper()
	p, err := docker.New(docker.Options{Host: dockertest.Shared(tb).Host, Image: dockertest.Image, GuestBinary: conformancetest.GuestBinary(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

func TestConformance(t *testing.T) {
	conformancetest.Run(t, func(t *testing.T) sandbox.Provider { return provider(t) })
}
