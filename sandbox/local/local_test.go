package local

import (
	"context"
	"fmt"
	"testing"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/conformance"
	"managoat/sandbox/guest"
)

func TestMachineRunsCommands(t *testing.T) {
	p, err := New(Options{Dir: t.TempDir(), GuestBinary: conformance.GuestBinary(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx := context.Background()
	for i := range 3 {
		id := fmt.Sprintf("m-%d", i)
		t0 := time.Now()
		if _, err := p.Create(ctx, sandbox.Spec{Name: id, Hostname: "box"}); err != nil {
			t.Fatal(err)
		}
		t1 := time.Now()
		defer p.Destroy(ctx, id)
		if err := p.Start(ctx, id); err != nil {
			t.Fatal(err)
		}
		t2 := time.Now()
		conn, err := p.Guest(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		c, err := guest.Dial(ctx, conn, guest.RoleServer)
		if err != nil {
			t.Fatal(err)
		}
		t3 := time.Now()
		for _, u := range []guest.User{guest.Sprite, guest.Root} {
			out, errs, exit, err := c.Run(ctx, guest.Exec{ID: "a", User: u, Argv: []string{"bash", "-c", "id; cat /proc/self/status | grep -E 'Cap|Sec|NoNew'; cat /proc/mounts; ls -la / /usr/local/bin /usr/local/lib/managoat /proc/self/fd; cat /etc/hosts; ps aux; echo $PATH; exit 3"}})
			t.Logf("%s\n%s %+v %v", out, errs, exit, err)
		}
		t4 := time.Now()
		if err := p.Stop(ctx, id); err != nil {
			t.Fatal(err)
		}
		t5 := time.Now()
		if err := p.Destroy(ctx, id); err != nil {
			t.Fatal(err)
		}
		t.Log("create", t1.Sub(t0), "start", t2.Sub(t1), "dial", t3.Sub(t2), "2 exec", t4.Sub(t3), "stop", t5.Sub(t4), "destroy", time.Since(t5))
	}
}
