package workspace_test

import (
	"testing"

	"github.com/google/uuid"

	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox/sandboxtest"
)

// A machine is placed on the host with the most free places that lives, offers the provider, is not drained and not full. One
// whose server hangs is given it until it counts as away; then it is made where there is room next.
func TestAMachineIsPlacedWhereThereIsTheMostRoom(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	env := makeEnvironment(t, w, nil)
	here := w.Host.ID
	hosts := map[string]uuid.UUID{}
	host := func(name string, places int, more string) {
		t.Helper()
		hosts[name] = uuid.New()
		change(t, w, "insert into hosts (id, url, places, providers) values ($1, 'http://127.0.0.1:9', $2, array[$3])", hosts[name], places, sandboxtest.Name())
		if more != "" {
			change(t, w, "update hosts set "+more+" where id = $1", hosts[name])
		}
	}
	placed := func(ws workspace.Workspace) (host uuid.UUID) {
		t.Helper()
		if err := w.Instance.Owner(t).QueryRow(t.Context(), "select host_id from machines where id = $1", ws.SandboxID).Scan(&host); err != nil {
			t.Fatal(err)
		}
		return host
	}
	change(t, w, "update hosts set places = 5 where id = $1", here)
	host("drained", 90, "draining_at = now()")
	host("away", 90, "seen_at = now() - interval '1 minute'")
	host("forgotten", 90, "forgotten_at = now()")
	host("of another provider", 90, "providers = '{cloud}'")
	host("full", 0, "capped = true")
	host("smaller", 4, "")
	first := ready(t, w, create(t, w, env).ID)
	if got := placed(first); got != here {
		t.Fatalf("the first is on %s; the hosts are %v and %s", got, hosts, here)
	}

	// On both there is room for four more: whoever is asked makes it. Then the other one has more.
	second := ready(t, w, create(t, w, env).ID)
	if got := placed(second); got != here {
		t.Errorf("of two hosts with as much room %s was chosen", got)
	}
	change(t, w, "update hosts set seen_at = now() where id = $1", hosts["smaller"]) // two setups may take as long as a host may be silent
	third := create(t, w, env)
	if got := placed(third); got != hosts["smaller"] {
		t.Fatalf("the third is on %s; the hosts are %v and %s", got, hosts, here)
	}
	if got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, third.ID); err != nil || got.MachineStatus != machine.Pending {
		t.Errorf("of another host's machine it was concluded: %+v %v", got, err)
	}
	change(t, w, "update hosts set seen_at = now() - interval '1 minute' where id = $1", hosts["smaller"])
	if got := ready(t, w, third.ID); placed(got) != here {
		t.Errorf("with its host away it is on %s", placed(got))
	}

	// As many as a host may run, and no more: also not a parked one.
	change(t, w, "update hosts set capped = true, places = 3 where id = $1", here)
	if _, err := w.Workspaces.Create(t.Context(), w.Owner.Actor, workspace.CreateInput{Name: "one too many", EnvironmentID: env.ID}); code(err) != refusal.NoHost {
		t.Errorf("a fourth machine: %v", err)
	}
	change(t, w, "update hosts set draining_at = now() where id = $1", here) // parks what runs there
	if err := w.Workspaces.ParkDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, ws := range []workspace.Workspace{first, second, third} {
		is(t, w, ws.ID, machine.Suspended)
	}
	if _, err := w.Workspaces.Wake(t.Context(), w.Owner.Actor, third.ID); code(err) != refusal.HostDraining {
		t.Errorf("a wake on a drained host: %v", err)
	}
	change(t, w, "update hosts set draining_at = null, places = 0 where id = $1", here)
	if _, err := w.Workspaces.Wake(t.Context(), w.Owner.Actor, third.ID); code(err) != refusal.FleetFull {
		t.Errorf("a wake on a full host: %v", err)
	}
	change(t, w, "update hosts set places = 1 where id = $1", here)
	if _, err := w.Workspaces.Wake(t.Context(), w.Owner.Actor, third.ID); err != nil {
		t.Errorf("a wake on one with room: %v", err)
	}
	is(t, w, third.ID, machine.Ready)
}
