package datadir

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestASecondServerOnTheSameDirectoryIsRefusedByNameOfTheFirst(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	first, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Announce("http://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	_, err = Open(path)
	var inUse *InUse
	if !errors.As(err, &inUse) || inUse.Holder.PID != os.Getpid() || !strings.Contains(err.Error(), "http://127.0.0.1:1") {
		t.Fatalf("second open: %v", err)
	}
	first.Close()
	second, err := Open(path)
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	second.Close()
}
