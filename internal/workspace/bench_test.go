package workspace_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/input"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox"
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
			all, err := w.Provider.(sandbox.Layers).ListLayers(b.Context(), nil)
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

// benchListed is how many workspaces one account's list shows.
const benchListed = 500

// BenchmarkList is the time to list an account's workspaces, as many as fit in one answer, up to their JSON. All are ready
// and up, of fifty environments.
func BenchmarkList(b *testing.B) {
	w := workspacetest.New(b)
	env := environment.New()
	env.Name = "listed"
	made, err := w.Environments.Create(b.Context(), w.Owner.Actor, env)
	if err != nil {
		b.Fatal(err)
	}
	first, err := w.Workspaces.Create(b.Context(), w.Owner.Actor, workspace.CreateInput{Name: "first", EnvironmentID: made.ID})
	for deadline := time.Now().Add(patience); err == nil && first.Status == workspace.Provisioning && time.Now().Before(deadline); {
		<-time.After(5 * time.Millisecond)
		first, err = w.Workspaces.Get(b.Context(), w.Owner.Actor, first.ID)
	}
	if err != nil || first.Status != workspace.Ready {
		b.Fatalf("status %s, error %+v %v", first.Status, first.Error, err)
	}
	rows := w.Instance.Owner(b)
	for _, sql := range []string{
		`create table copies as select n, gen_random_uuid() as workspace, gen_random_uuid() as machine from generate_series(2, $1::int) n`,
		`insert into environments select (jsonb_populate_record(e, jsonb_build_object('id', md5('environment ' || n)::uuid, 'name', 'listed ' || n))).*
			from environments e, generate_series(2, $1::int / 10) n where e.name = 'listed'`,
		`insert into workspaces select (jsonb_populate_record(w, jsonb_build_object('id', c.workspace, 'name', 'copy ' || c.n, 'machine_id', c.machine,
			'environment_id', md5('environment ' || (2 + c.n % ($1::int / 10 - 1)))::uuid))).* from workspaces w, copies c where w.name = 'first'`,
		`insert into machines select (jsonb_populate_record(m, jsonb_build_object('id', c.machine, 'workspace_id', c.workspace))).*
			from machines m, copies c where m.id = (select machine_id from workspaces where name = 'first') and $1::int > 0`,
		`analyze`,
	} {
		args := []any{benchListed}
		if !strings.Contains(sql, "$1") {
			args = nil
		}
		if _, err := rows.Exec(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	var all []time.Duration
	for b.Loop() {
		for range 40 {
			began := time.Now()
			list, err := w.Workspaces.List(b.Context(), w.Owner.Actor, true, input.Page{Limit: benchListed})
			if err != nil || len(list.Items) != benchListed || list.Items[0].IdleSince == nil {
				b.Fatal(len(list.Items), err)
			}
			if _, err := json.Marshal(list.Items); err != nil {
				b.Fatal(err)
			}
			all = append(all, time.Since(began))
		}
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*9/10].Microseconds())/1000, "p90-ms")
}
