package workspace_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
)

// benchSetups is how many setups of each kind are compared.
const benchSetups = 3

// BenchmarkSetup compares the setup of a workspace whose environment's packages were installed before with one that
// installs them, by turns, from the create to ready.
func BenchmarkSetup(b *testing.B) {
	w := workspacetest.New(b)
	in := environment.New()
	in.Name = "bench"
	in.Packages = environment.Packages{Apt: []string{"managoat-hello"}, Npm: []string{"managoat-greet"}}
	in.SetupScript = "managoat-hello && managoat-greet"
	env, err := w.Environments.Create(b.Context(), w.Owner.Actor, in)
	if err != nil {
		b.Fatal(err)
	}
	setup := func(fresh bool, note string) time.Duration {
		began := time.Now()
		ws, err := w.Workspaces.Create(b.Context(), w.Owner.Actor, workspace.CreateInput{Name: uuid.NewString(), EnvironmentID: env.ID, Fresh: fresh})
		for deadline := began.Add(patience); err == nil && ws.Status == workspace.Provisioning && time.Now().Before(deadline); {
			<-time.After(5 * time.Millisecond)
			ws, err = w.Workspaces.Get(b.Context(), w.Owner.Actor, ws.ID)
		}
		took := time.Since(began)
		if err != nil || ws.Status != workspace.Ready {
			b.Fatalf("status %s, error %+v %v", ws.Status, ws.Error, err)
		}
		log, err := w.Workspaces.SetupLog(b.Context(), w.Owner.Actor, ws.ID)
		if err != nil || !strings.HasPrefix(log.Steps[3].Note, note) {
			b.Fatalf("the packages were %+v %v, want %q", log.Steps, err, note)
		}
		if err := w.Workspaces.Delete(b.Context(), w.Owner.Actor, ws.ID); err != nil {
			b.Fatal(err)
		}
		return took
	}
	// kept waits until the newest layer is another than the one before.
	kept := func(before string) (id string) {
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
			all, err := w.Provider.ListLayers(b.Context(), nil)
			if err != nil {
				b.Fatal(err)
			}
			if len(all) > 0 && all[0].ID != before {
				return all[0].ID
			}
		}
		b.Fatal("no layer came of the setup")
		return ""
	}
	median := func(times []time.Duration) time.Duration {
		slices.Sort(times)
		return times[len(times)/2]
	}
	for b.Loop() {
		setup(true, "apt 1, npm 1") // the first also makes the base
		layer := kept("")
		var first, second []time.Duration
		for range benchSetups {
			first = append(first, setup(true, "apt 1, npm 1"))
			layer = kept(layer)
			second = append(second, setup(false, cached))
		}
		b.ReportMetric(float64(median(second))/float64(median(first)), "x-first")
		b.ReportMetric(float64(median(first).Milliseconds()), "ms/first")
		b.ReportMetric(float64(median(second).Milliseconds()), "ms/second")
	}
}
