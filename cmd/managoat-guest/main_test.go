package main

import (
	"os/exec"
	"strings"
	"testing"

	"managoat/sandbox/conformance/conformancetest"
)

// maxSize is what the guest's binary may weigh, in bytes: it is copied into every host and mapped by every
// process of every machine that starts.
const maxSize = 6 << 20

func TestTheGuestStaysSmallAndKnowsNothingOfTheServer(t *testing.T) {
	t.Parallel()
	if size := len(conformancetest.GuestBinary(t)); size > maxSize {
		t.Errorf("the guest weighs %d bytes, the limit is %d", size, maxSize)
	}
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range strings.Fields(string(out)) {
		switch {
		case pkg == "managoat/cmd/managoat-guest", pkg == "managoat/sandbox/guest", pkg == "managoat/sandbox/userns", strings.HasPrefix(pkg, "managoat/sandbox/guest/"):
		case strings.HasPrefix(pkg, "github.com/hashicorp/yamux"), strings.HasPrefix(pkg, "golang.org/x/sys/"):
		case strings.HasPrefix(pkg, "managoat/"), strings.Contains(strings.Split(pkg, "/")[0], "."):
			t.Errorf("the guest imports %s", pkg)
		case pkg == "net/http", pkg == "crypto/tls":
			t.Errorf("the guest imports %s, which is too large for it", pkg)
		}
	}
}
