package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/broker"
	"managoat/internal/environment"
	"managoat/internal/machine"
	"managoat/internal/machine/operation"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/transcript"
	"managoat/queries"
	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// Steps of a setup, in order.
const (
	stepMachine      = "machine"
	stepBroker       = "broker"
	stepEnvironment  = "environment"
	stepPackages     = "packages"
	stepRepositories = "repositories"
	stepScript       = "setup_script"
)

var stepNames = []string{stepMachine, stepBroker, stepEnvironment, stepPackages, stepRepositories, stepScript}

// States of a step, in a StageEvent too.
const (
	StageStarted = "started"
	StagePrinted = "printed" // Lines came
	StageDone    = "done"
	StageSkipped = "skipped" // there was nothing to do
	StageFailed  = "failed"
)

// StageEvent is what the setup of a conversation's own workspace tells its conversation.
type StageEvent struct {
	SetupID  uuid.UUID
	Step     string
	State    string // one of the Stage constants
	Note     string
	Lines    []string // of StagePrinted, redacted; each ends with its newline but one whose rest comes next
	Dropped  int64    // bytes printed before Lines that are not shown
	Duration time.Duration
	Error    *SetupError // of StageFailed
}

// Limits of how long a command is waited for.
const (
	maxRedials   = 5                // connections to the guest that one command may lose
	redialPause  = time.Second      // between tries to connect again
	troubleEvery = 2 * time.Second  // between looks at what keeps the machine from answering
	answerGrace  = 30 * time.Second // past the command's own time limit
)

// setup is one run of a setup: on one machine, under one epoch of its operation.
type setup struct {
	s       *Service
	held    *operation.Held
	w       queries.Workspace
	machine uuid.UUID

	env      environment.Environment
	secrets  map[string]secret.Value
	redactor *transcript.Redactor

	fresh     bool // packages are installed, whatever layer of them there is
	built     *machine.Built
	dotenv    []byte           // the file of variables and secrets
	installed sandbox.Snapshot // of the machine after the step packages; nil: none was taken
	out       *printer         // of the step that runs
}

// stepError is a step that failed: for people, redacted by the gate when it is written.
type stepError struct {
	message string
	exit    *guest.Exit
}

func (e *stepError) Error() string { return e.message }

func failf(exit *guest.Exit, format string, args ...any) error {
	return &stepError{fmt.Sprintf(format, args...), exit}
}

// setup is the operation behind a create, a retry, a rebuild, and a machine that was lost.
func (s *Service) setup(ctx context.Context, h *operation.Held) error {
	run, err := s.prepare(ctx, h)
	if err != nil {
		return err
	}
	defer run.discard()
	for _, step := range []struct {
		name string
		run  func(context.Context) (note string, skipped bool, err error)
	}{
		{stepMachine, run.makeMachine},
		{stepBroker, run.settleBroker},
		{stepEnvironment, run.writeEnvironment},
		{stepPackages, run.installPackages},
		{stepRepositories, run.cloneRepositories},
		{stepScript, run.runScript},
	} {
		failure, err := run.step(ctx, step.name, step.run)
		if err != nil {
			return err
		}
		if failure != nil {
			return run.fail(ctx, failure)
		}
	}
	err = s.o.Machines.Ready(ctx, h, run.machine, func(tx db.Tx) error {
		if err := tx.EndWorkspaceSetup(ctx, queries.EndWorkspaceSetupParams{ID: run.w.ID, Status: string(Ready)}); err != nil {
			return err
		}
		return tx.DropRetiredSecrets(ctx, run.w.EnvironmentID, run.w.VaultID)
	})
	if err == nil {
		run.keep(ctx)
	}
	return err
}

// prepare reads what the setup works from. A setup that begins again, because the server that ran it died, does so on a
// new machine: of the old one nothing is known.
func (s *Service) prepare(ctx context.Context, h *operation.Held) (*setup, error) {
	var payload setupPayload
	if err := json.Unmarshal(h.Payload, &payload); err != nil {
		return nil, fmt.Errorf("read the setup's payload: %w", err)
	}
	run := &setup{s: s, held: h, machine: h.MachineID, fresh: payload.Fresh}
	again := h.Step != ""
	err := h.Write(ctx, func(tx db.Tx) error {
		var err error
		if run.w, err = tx.LockWorkspace(ctx, h.WorkspaceID); err != nil {
			return err
		}
		if Status(run.w.Status) != Provisioning || *run.w.SetupID != h.ID {
			return operation.ErrLost // it was deleted meanwhile
		}
		if run.env, err = readEnvironment(ctx, tx.Queries, run.w.EnvironmentID); err != nil {
			return err
		}
		if !again {
			return nil
		}
		run.machine = uuid.Must(uuid.NewV7())
		if err := s.o.Machines.PlanHere(ctx, tx, run.machine, run.w.ID, run.w.Provider); err != nil {
			return err
		}
		if err := tx.ReplaceMachine(ctx, run.machine, run.w.ID); err != nil {
			return err
		}
		if err := tx.DeleteSetupSteps(ctx, run.w.ID); err != nil {
			return err
		}
		return tx.InsertSetupSteps(ctx, queries.InsertSetupStepsParams{WorkspaceID: run.w.ID, SetupID: h.ID, Steps: stepNames})
	})
	if err != nil {
		return nil, fmt.Errorf("begin the setup: %w", err)
	}
	if run.secrets, err = s.secrets(ctx, h.TenantID, run.w.EnvironmentID, run.w.VaultID); err != nil {
		return nil, err
	}
	masks, err := s.masks(ctx, h.TenantID, run.w.EnvironmentID, run.w.VaultID)
	if err != nil {
		return nil, err
	}
	run.redactor = transcript.NewRedactor(masks...)
	return run, nil
}

// Masks are the values that nothing may show of a workspace: its environment's and vault's secrets as they are, and as they
// were since its machine was built, whose disk and processes keep what they were given.
func (s *Service) Masks(ctx context.Context, tenantID, id uuid.UUID) ([]secret.Value, error) {
	row, err := s.row(ctx, s.db.Tenant(tenantID), id)
	if err != nil {
		return nil, err
	}
	return s.masks(ctx, tenantID, row.w.EnvironmentID, row.w.VaultID)
}

func (s *Service) masks(ctx context.Context, tenantID uuid.UUID, environmentID, vaultID *uuid.UUID) (all []secret.Value, err error) {
	if environmentID != nil {
		if all, err = s.o.Environments.Masks(ctx, tenantID, *environmentID); err != nil {
			return nil, err
		}
	}
	if vaultID != nil {
		of, err := s.o.Vaults.Masks(ctx, tenantID, *vaultID)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// secrets opens the secrets of a workspace; the vault's win over the environment's.
func (s *Service) secrets(ctx context.Context, tenantID uuid.UUID, environmentID, vaultID *uuid.UUID) (map[string]secret.Value, error) {
	all := map[string]secret.Value{}
	if environmentID != nil {
		of, err := s.o.Environments.Secrets(ctx, tenantID, *environmentID)
		if err != nil {
			return nil, fmt.Errorf("open the environment's secrets: %w", err)
		}
		maps.Copy(all, of)
	}
	if vaultID != nil {
		of, err := s.o.Vaults.Secrets(ctx, tenantID, *vaultID)
		if err != nil {
			return nil, fmt.Errorf("open the vault's secrets: %w", err)
		}
		maps.Copy(all, of)
	}
	return all, nil
}

// step runs one step. failure is why it failed; err is that the setup cannot go on here.
func (r *setup) step(ctx context.Context, name string, run func(context.Context) (string, bool, error)) (failure *SetupError, err error) {
	began := time.Now()
	err = r.s.told(ctx, r.held, r.held.Write, func(tx db.Tx) error {
		if err := tx.StepMachineOperation(ctx, name, r.held.ID); err != nil {
			return err
		}
		if err := tx.SetWorkspaceStep(ctx, name, r.w.ID); err != nil {
			return err
		}
		return tx.StartSetupStep(ctx, r.w.ID, name)
	})
	if err != nil {
		return nil, err
	}
	r.tell(ctx, StageEvent{Step: name, State: StageStarted})
	r.out = r.print(ctx, name)
	note, skipped, failed := run(ctx)
	if failed != nil && ctx.Err() == nil && !errors.Is(failed, operation.ErrLost) && !db.Away(failed) { // with PostgreSQL away nothing failed: it begins again
		failure = r.failure(ctx, name, failed)
	}
	if err := r.out.close(ctx); err != nil {
		return nil, err
	}
	if failure == nil && failed != nil {
		return nil, failed
	}
	end := queries.EndSetupStepParams{WorkspaceID: r.w.ID, Step: name, State: StageDone, Note: note}
	switch {
	case failure != nil:
		end.State, end.Signal = StageFailed, failure.Signal
		if failure.ExitCode != nil {
			code := int32(*failure.ExitCode)
			end.ExitCode = &code
		}
	case skipped:
		end.State = StageSkipped
	default:
		if name == stepScript || name == stepPackages || name == stepRepositories {
			end.ExitCode = new(int32)
		}
	}
	if err := r.held.Write(ctx, func(tx db.Tx) error { return tx.EndSetupStep(ctx, end) }); err != nil {
		return nil, err
	}
	r.tell(ctx, StageEvent{Step: name, State: end.State, Note: note, Duration: time.Since(began), Error: failure})
	return failure, nil
}

// tell puts a stage into the transcript of the conversation whose own workspace this is. The machine does not depend on
// it: what cannot be told is logged, and the setup goes on.
func (r *setup) tell(ctx context.Context, e StageEvent) {
	if !r.w.Implicit {
		return
	}
	e.SetupID = r.held.ID
	if err := r.s.o.Occupants.ImplicitStage(ctx, r.w.TenantID, r.w.ID, e); err != nil {
		r.s.log.Error("tell a conversation of its setup", "workspace", r.w.ID, "step", e.Step, "error", err)
	}
}

// failure says what a step failed of, in words for people, and what is known of the machine at that moment.
func (r *setup) failure(ctx context.Context, step string, err error) *SetupError {
	f := &SetupError{Step: step}
	var failed *stepError
	if errors.As(err, &failed) {
		f.Message = failed.message
		if x := failed.exit; x != nil {
			f.Signal = x.Signal
			if x.Signal == "" && x.StartError == "" {
				f.ExitCode = &x.Code
			}
		}
	} else {
		r.s.log.Warn("a setup step failed", "workspace", r.w.ID, "step", step, "error", err)
		f.Message = machine.Reason(err)
	}
	if r.built != nil && (failed == nil || failed.exit != nil) {
		if trouble := r.s.o.Machines.Trouble(ctx, r.w.TenantID, r.machine); trouble != "" {
			f.Message += " " + trouble // the commands' own words for it are many
		}
	}
	r.out.flush()
	f.Message = transcript.NewGate(r.redactor).String(f.Message)
	f.OutputTail = r.out.tail()
	return f
}

// fail ends the setup. Its machine goes: a retry builds another, and a failed one holds no memory and no quota.
func (r *setup) fail(ctx context.Context, failure *SetupError) error {
	raw, err := json.Marshal(failure)
	if err != nil {
		return err
	}
	if row, err := r.s.db.Tenant(r.w.TenantID).Machine(ctx, r.machine); err != nil {
		return fmt.Errorf("read the machine: %w", err)
	} else if err := r.s.o.Machines.Destroy(ctx, r.held, row, machine.Failed); errors.Is(err, operation.ErrLost) {
		return err
	} else if err != nil {
		// It is marked as going, and the next setup or the delete takes it away.
		r.s.log.Error("destroy the machine of a failed setup", "workspace", r.w.ID, "machine", r.machine, "error", err)
	}
	ending := func(ctx context.Context, fn func(db.Tx) error) error { return r.held.Fail(ctx, failure, fn) }
	return r.s.told(ctx, r.held, ending, func(tx db.Tx) error {
		if err := tx.EndWorkspaceSetup(ctx, queries.EndWorkspaceSetupParams{ID: r.w.ID, Status: string(Failed), SetupStep: failure.Step, Error: raw}); err != nil {
			return err
		}
		return tx.FailMachine(ctx, r.machine)
	})
}

// makeMachine is the step machine: what is left of earlier ones goes, the new one is made and answers.
func (r *setup) makeMachine(ctx context.Context) (string, bool, error) {
	if r.held.Step != "" {
		r.out.say("The server that ran this setup stopped in its step %s. It begins again on a new machine.", r.held.Step)
	}
	old, err := r.s.db.Tenant(r.w.TenantID).MachinesToDestroy(ctx, r.w.ID, &r.machine)
	if err != nil {
		return "", false, fmt.Errorf("look for earlier machines: %w", err)
	}
	if len(old) > 0 {
		if err := r.awaitTurns(ctx); err != nil {
			return "", false, err
		}
	}
	for _, m := range old {
		r.out.say("Removing the machine that was there before.")
		err := r.s.o.Machines.Destroy(ctx, r.held, m, machine.Terminated)
		if refusal.Is(err, refusal.MachineHostUnreachable) {
			// Another server's: it removes the machine now, or when it is back, since nothing refers to it any more.
			err = r.held.Write(ctx, func(tx db.Tx) error {
				if err := tx.EndMachine(ctx, queries.EndMachineParams{ID: m.ID, Status: string(machine.Terminated)}); err != nil {
					return err
				}
				return tx.NotifyHost(ctx, m.HostID.String())
			})
		}
		if err != nil {
			return "", false, err
		}
	}
	layer := r.layer()
	if r.fresh {
		layer = ""
	}
	if r.built, err = r.s.o.Machines.Build(ctx, r.held, r.machine, r.w.Name, layer); err != nil {
		return "", false, err
	}
	r.out.say("Machine %s on the provider %s, base %s.", r.built.Hostname, r.built.Provider, r.built.Base.Name)
	for _, note := range r.built.Capabilities.Notes {
		r.out.say("%s", note)
	}
	return "base " + r.built.Base.Name, false, nil
}

// settleBroker is the step broker: the machine's networking as its environment says now, its certificates, and the way
// out.
func (r *setup) settleBroker(ctx context.Context) (string, bool, error) {
	policy := policyOf(r.env)
	rawPolicy, err := json.Marshal(policy)
	if err != nil {
		return "", false, err
	}
	built, err := json.Marshal(environment.Digests(r.env))
	if err != nil {
		return "", false, err
	}
	err = r.held.Write(ctx, func(tx db.Tx) error {
		return tx.BuildMachine(ctx, queries.BuildMachineParams{ID: r.machine, Built: built, Policy: rawPolicy})
	})
	if err != nil {
		return "", false, err
	}
	public, err := r.s.trust(ctx, r.built.Guest)
	if err != nil {
		return "", false, err
	}
	if !public {
		r.out.say("This host has no public certificates, so programs in the machine cannot check any: install the package ca-certificates on the host.")
	}
	if err := r.s.o.Machines.Route(ctx, r.w.TenantID, r.machine); err != nil {
		return "", false, failf(nil, "The egress process does not reach the machine: %s", machine.Reason(err))
	}
	if policy.Type == "limited" {
		r.out.say("Networking is limited to %s.", hosts(policy.AllowedHosts))
		return "limited", false, nil
	}
	r.out.say("Networking is unrestricted: any public host on the instance's ports.")
	return "unrestricted", false, nil
}

func hosts(allowed []string) string {
	if len(allowed) == 0 {
		return "nothing: no host is allowed"
	}
	return strings.Join(allowed, ", ")
}

// policyOf is an environment's networking as the broker reads it.
func policyOf(env environment.Environment) broker.Policy {
	return broker.Policy{Type: env.NetworkingType, AllowedHosts: env.NetworkingConfig.AllowedHosts}
}

// base is the environment of every command of a setup: the way out, the certificates, where packages come from.
func (r *setup) base() map[string]string {
	env := broker.ProxyEnv("")
	maps.Copy(env, TrustEnv())
	maps.Copy(env, r.s.registries())
	return env
}

// registries are the variables that name an operator's own package registries.
func (s *Service) registries() map[string]string {
	env := map[string]string{}
	if s.o.NPMRegistry != "" {
		env["NPM_CONFIG_REGISTRY"] = s.o.NPMRegistry
	}
	if s.o.PIPIndex != "" {
		env["PIP_INDEX_URL"] = s.o.PIPIndex
	}
	return env
}

// own is the environment of what runs for the workspace's people: their variables and secrets, over base.
func (r *setup) own() map[string]string {
	env := r.base()
	maps.Copy(env, r.env.EnvVars)
	for name, v := range r.secrets {
		env[name] = v.Reveal()
	}
	return env
}

// command runs one command of a step and prints what it prints. A connection to the guest that ends is made again and
// the command followed on: it goes on without us. label names it in errors.
func (r *setup) command(ctx context.Context, label string, e guest.Exec) error {
	e.ID = "setup-" + uuid.NewString()
	e.Spool, e.Joined = guest.SpoolLog, true // people read the last lines, in the order of their printing
	watched, stop := r.watch(ctx, label, e.Timeout)
	defer stop()
	if err := r.built.Guest.Start(watched, e); err != nil {
		return r.stuck(watched, fmt.Errorf("start %s: %w", label, err))
	}
	var from guest.Offsets
	each := func(c guest.Chunk) error {
		r.out.chunk(c)
		if end := c.Offset + int64(len(c.Data)); c.Stream == guest.Stdout {
			from.Stdout = end
		} else {
			from.Stderr = end
		}
		return nil
	}
	exit, err := r.built.Guest.Follow(watched, e.ID, from, each)
	for tries := 0; err != nil && watched.Err() == nil && tries < maxRedials; tries++ {
		if tries > 0 && !sleep(watched, redialPause) {
			break
		}
		var unknown *guest.FileError
		if errors.As(err, &unknown) {
			return failf(nil, "%s was cut short: the machine was started again.", label)
		}
		if r.built.Guest, err = r.s.o.Machines.Connect(watched, r.w.TenantID, r.machine); err == nil {
			exit, err = r.built.Guest.Follow(watched, e.ID, from, each)
		}
	}
	r.out.flush()
	if err != nil {
		return r.stuck(watched, r.ended(ctx, label, err))
	}
	if err := r.built.Guest.Forget(watched, e.ID); err != nil {
		r.s.log.Warn("forget a command", "workspace", r.w.ID, "error", err)
	}
	return r.verdict(label, e.Timeout, exit)
}

// ended says why a command can be followed no more: its machine may have stopped.
func (r *setup) ended(ctx context.Context, label string, err error) error {
	info, ierr := r.s.o.Machines.Inspect(ctx, r.w.TenantID, r.machine)
	switch {
	case sandbox.Lost(ierr):
		return failf(nil, "%s was cut short: the machine is gone.", label)
	case ierr == nil && info.State == sandbox.Stopped:
		return failf(nil, "%s was cut short: the machine stopped.", label)
	}
	return fmt.Errorf("follow %s: %w", label, err)
}

// sleep waits, and tells whether it was not cut short.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch gives a command a context that ends, with the reason as its cause, when the machine is frozen or says nothing
// past the command's own time: a guest keeps that, unless it cannot.
func (r *setup) watch(ctx context.Context, label string, limit time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick, late := time.NewTicker(troubleEvery), time.NewTimer(limit+answerGrace)
		defer tick.Stop()
		defer late.Stop()
		for {
			select {
			case <-tick.C:
				if trouble := r.s.o.Machines.Trouble(ctx, r.w.TenantID, r.machine); trouble != "" {
					cancel(failf(nil, "%s was stopped. %s", label, trouble))
					return
				}
			case <-late.C:
				cancel(failf(nil, "%s did not end within %s, and the machine does not answer.", label, limit))
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// stuck is why a watched command was given up, or else the error itself.
func (r *setup) stuck(watched context.Context, err error) error {
	var why *stepError
	if errors.As(context.Cause(watched), &why) {
		return why
	}
	return err
}

// verdict is nil for a command that exited with 0 by itself, and else says how it ended.
func (r *setup) verdict(label string, limit time.Duration, x *guest.Exit) error {
	switch {
	case x.StartError != "":
		return failf(x, "%s could not be started: %s.", label, x.StartError)
	case x.TimedOut:
		return failf(x, "%s did not end within %s and was stopped.", label, limit)
	case x.OutOfMemory && (x.Code != 0 || x.Signal != ""):
		return failf(x, "%s ran out of memory (out_of_memory): the machine's limit is %s.", label, machine.Size(r.s.o.Machines.Limits().MemoryBytes))
	case x.Signal != "":
		return failf(x, "%s was ended by %s.", label, x.Signal)
	case x.Code != 0:
		return failf(x, "%s exited with code %d.", label, x.Code)
	}
	return nil
}
