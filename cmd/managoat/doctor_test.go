package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/client"

	"managoat/sandbox/conformance"
	"managoat/sandbox/docker/dockertest"
)

// nobody is a user that has nothing on a test host.
const nobody = 54321

// Every rule of the provider contract holds for a server without root too, and the doctor runs them all by itself.
func TestTheDoctorRunsEveryRuleOfSandboxesWithoutRoot(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "mgd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	program, temp := filepath.Join(dir, "managoat"), filepath.Join(dir, "tmp")
	// Copied by another process: what this one starts meanwhile would have the file open for writing, until it is another program.
	if out, err := exec.Command("install", "-m", "755", os.Getenv("MANAGOAT_TEST_BINARY"), program).CombinedOutput(); err != nil {
		t.Fatalf("the product's binary (MANAGOAT_TEST_BINARY): %v: %s", err, out)
	}
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(temp, 0o700), os.Chown(temp, nobody, nobody)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "doctor", "sandbox", "local")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + temp}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %s", err, stderr.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "✕") || strings.HasPrefix(line, "  →") {
			t.Error(line)
		}
	}
	all := conformance.Checks()
	for _, c := range all {
		if !strings.Contains(string(out), "✓ "+c.Name+" (") {
			t.Errorf("the rule %q was not run", c.Name)
		}
	}
	for _, want := range []string{fmt.Sprintf("%d of %d rules kept", len(all), len(all)), "! a uid range of its own", "! machine root"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the doctor does not say %q:\n%s", want, out)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("the doctor left %v (%v)", left, err)
	}
}

// An engine without the machines' image, and without a registry, is tried with what this host has.
func TestTheDoctorTriesAnEngineThatHasNoImage(t *testing.T) {
	t.Parallel()
	engine, err := dockertest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Remove(); err != nil {
			t.Error(err)
		}
	})
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Getenv("MANAGOAT_TEST_BINARY"), "doctor", "sandbox", "docker", "--docker-host", engine.Host, "--only", "machine")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %s%s", err, out, stderr.Bytes())
	}
	kept := 0
	for _, c := range conformance.Checks() {
		said := strings.Contains(string(out), c.Name)
		switch {
		case !strings.Contains(c.Name, "machine"):
			if said {
				t.Errorf("the rule %q was not asked for", c.Name)
			}
		case c.Full:
			if !strings.Contains(string(out), "! only the full image proves it: "+c.Name+"\n") {
				t.Errorf("it is not said that the rule %q needs the image", c.Name)
			}
		default:
			kept++
			if !strings.Contains(string(out), "✓ "+c.Name+" (") {
				t.Errorf("the rule %q was not kept", c.Name)
			}
		}
	}
	for _, want := range []string{fmt.Sprintf("%d of %d rules kept", kept, kept), "a skeleton of busybox stands in for it", "→ make image"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the doctor does not say %q:\n%s", want, out)
		}
	}
	c, err := engine.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	containers, err := c.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	images, ierr := c.ImageList(t.Context(), client.ImageListOptions{All: true})
	if err != nil || ierr != nil || len(containers.Items) > 0 || len(images.Items) > 0 {
		t.Errorf("the doctor left %+v %+v (%v %v)", containers.Items, images.Items, err, ierr)
	}
}

func TestTheDoctorNamesTheProvidersItKnows(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(os.Getenv("MANAGOAT_TEST_BINARY"), "doctor", "sandbox", "cloud").CombinedOutput()
	if err == nil || !strings.Contains(string(out), `no sandbox provider "cloud"; there are: local, docker`) {
		t.Errorf("%v: %s", err, out)
	}
}
