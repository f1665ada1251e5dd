package userns_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"managoat/sandbox/userns"
)

const childName = "userns-child"

func TestMain(m *testing.M) {
	if os.Args[0] != childName {
		os.Exit(m.Run())
	}
	if err := userns.Enter(3); err != nil {
		fmt.Print(err)
		os.Exit(1)
	}
	before := os.Getuid()
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		fmt.Print(err)
		os.Exit(1)
	}
	ids, _ := os.ReadFile("/proc/self/uid_map")
	fmt.Print(before, " ", os.Getuid(), " ", strings.Fields(string(ids)), " ", unix.Sethostname([]byte("inside")))
	os.Exit(7)
}

func TestAChildHasItsIDsAndEveryCapabilityInsideBeforeItDoesAnything(t *testing.T) {
	t.Parallel()
	// As a process whose memory is nobody's business: its children begin like that too.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	for range 10 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		pid, err := userns.Start("/proc/self/exe", []string{childName}, &syscall.ProcAttr{
			Files: []uintptr{0, w.Fd(), w.Fd()}, Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUTS},
		}, []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100_000, Size: 10}})
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(r)
		r.Close()
		var status syscall.WaitStatus
		syscall.Wait4(pid, &status, 0, nil)
		if want := "65534 0 [0 100000 10] <nil>"; string(out) != want || status.ExitStatus() != 7 || err != nil {
			t.Fatalf("%q, exit %d, %v; want %q and 7", out, status.ExitStatus(), err, want)
		}
	}
}

func TestAChildWhoseIDsCannotBeMappedIsEndedAndReaped(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = userns.Start("/proc/self/exe", []string{childName}, &syscall.ProcAttr{Files: []uintptr{0, w.Fd(), w.Fd()}, Sys: &syscall.SysProcAttr{}},
		[]syscall.SysProcIDMap{{ContainerID: 0, HostID: 100_000, Size: 10}, {ContainerID: 5, HostID: 200_000, Size: 10}}) // they overlap
	w.Close()
	if err == nil || !strings.Contains(err.Error(), "map a child's ids") {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(r); len(out) > 0 || err != nil { // the end comes with the last one who could write
		t.Errorf("it said %q, %v", out, err)
	}
}

// As in a server that has many files open: none that a child is given may come to lie on its program's.
func TestAChildStartsHoweverItsDescriptorsAreNumbered(t *testing.T) {
	t.Parallel()
	for start := 90; start < 110; start++ {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD_CLOEXEC, start)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := userns.Start("/proc/self/exe", []string{childName}, &syscall.ProcAttr{Files: []uintptr{0, uintptr(out), uintptr(out)}, Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUTS}},
			[]syscall.SysProcIDMap{{ContainerID: 0, HostID: 100_000, Size: 10}})
		w.Close()
		unix.Close(out)
		if err != nil {
			t.Fatalf("with descriptors about %d: %v", start, err)
		}
		said, err := io.ReadAll(r)
		r.Close()
		var status syscall.WaitStatus
		syscall.Wait4(pid, &status, 0, nil)
		if status.ExitStatus() != 7 || err != nil {
			t.Fatalf("with descriptors about %d: %q, exit %d, %v", start, said, status.ExitStatus(), err)
		}
	}
}
