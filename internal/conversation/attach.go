package conversation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"managoat/db"
	"managoat/internal/broker"
	"managoat/internal/identity"
	"managoat/internal/inference"
	"managoat/internal/mcp"
	"managoat/internal/refusal"
	"managoat/internal/runtime"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/queries"
	"managoat/sandbox/guest"
)

// keyLifetime is how long a conversation's key for our API lasts. Every start of the adapter makes a new one.
const keyLifetime = 7 * 24 * time.Hour

// reattachFor is how long a turn waits, after a restart of the server, for its machine to answer.
const reattachFor = time.Minute

// attach returns the conversation's adapter, ready for a prompt: the one that runs, or a new one. Everything it waits for
// is shown.
func (t *turn) attach(ctx context.Context) (*process, error) {
	if err := t.attempt(ctx); err != nil {
		return nil, err
	}
	if p, err := t.here(ctx); p != nil || err != nil {
		return p, err
	}
	up, err := t.up(ctx)
	if err != nil {
		return nil, err
	}
	bound, err := t.s.openBound(ctx, t.s.db.Tenant(t.c.TenantID), t.c)
	if err != nil {
		return nil, err
	}
	if p, err := t.rejoin(ctx, up, bound); p != nil || err != nil {
		return p, err
	}
	// A machine that was just woken has no adapter yet, but may have homes of conversations that ended while it was parked.
	var servers mcp.Servers
	var homes errgroup.Group
	homes.Go(func() error { return t.s.clearHomes(ctx, up.Guest, t.c.TenantID, t.c.WorkspaceID, up.MachineID) })
	homes.Go(func() (err error) {
		servers, err = t.home(ctx, up)
		return err
	})
	if err := homes.Wait(); err != nil {
		return nil, err
	}
	if err := t.install(ctx); err != nil {
		return nil, err
	}
	if err := t.s.o.Workspaces.Share(ctx, up); err != nil {
		return nil, fmt.Errorf("show the machine the runtime's installation: %w", err)
	}
	return t.launch(ctx, up, bound, servers)
}

// attempt counts another start of the turn; the first is counted as it begins.
func (t *turn) attempt(ctx context.Context) error {
	if !t.begun {
		return nil
	}
	return t.op.write(ctx, func(tx db.Tx) error {
		if _, err := tx.TurnAttempt(ctx, t.row.ID); err != nil {
			return err
		}
		c, err := tx.LockConversationAlways(ctx, t.c.ID)
		if err == nil {
			t.c = c
		}
		return err
	})
}

// here is the adapter that runs and that this server holds: whether its machine is still the workspace's, and up, is checked
// as the prompt is written, see send.
func (t *turn) here(ctx context.Context) (*process, error) {
	a, err := readAdapter(t.c.Adapter)
	p := t.s.ready(t.c.ID)
	if err != nil || t.moved || a == nil || !a.Session || p == nil || p.execID != a.ExecID.String() || !p.client().Answers() {
		return nil, err
	}
	if _, err := t.s.openBound(ctx, t.s.db.Tenant(t.c.TenantID), t.c); err != nil {
		return nil, err
	}
	return p, nil
}

// remask teaches the process's masks the workspace's as they are now, beside what it knew. It waits for the database.
// A value that does not open has never been on a machine.
func (p *process) remask(ctx context.Context) {
	var now []secret.Value
	err := p.s.persist(ctx, func() (err error) {
		now, err = p.s.o.Workspaces.Masks(ctx, p.tenant, p.workspace)
		return err
	})
	if err == nil {
		p.redactor.Set(now)
	} else if ctx.Err() == nil {
		p.s.log.Warn("read what to mask of a workspace", "conversation", p.id, "error", err)
	}
}

// rejoin takes up the adapter that a server before us left. One that cannot be taken up is ended.
func (t *turn) rejoin(ctx context.Context, up *workspace.Up, bound *inference.Bound) (*process, error) {
	a, err := readAdapter(t.c.Adapter)
	if err != nil || a == nil {
		return nil, err
	}
	same := a.on(up)
	if p := t.s.held(t.c.ID); p != nil {
		p.detach()
	}
	if same && a.Session {
		status, err := up.Guest.Status(ctx, a.ExecID.String())
		if err == nil && status.Exit == nil {
			p, err := t.process(ctx, up, *a, bound)
			if err != nil {
				return nil, err
			}
			t.s.hold(p, *a, up.Guest, nil, nil)
			return p, nil
		}
		if err != nil && !notFound(err) {
			return nil, err
		}
	}
	if same {
		if err := killAdapter(ctx, up.Guest, a.ExecID.String()); err != nil {
			return nil, err
		}
	}
	return nil, t.s.dropAdapter(ctx, t.c.TenantID, t.c.ID, *a)
}

func notFound(err error) bool {
	var file *guest.FileError
	return errors.As(err, &file) && file.Code == guest.ErrNotFound
}

// install installs the runtime's adapter where that was not done yet.
func (t *turn) install(ctx context.Context) error {
	name := t.runtime.Installs()
	if runtime.Installed(name, t.s.o.RuntimesDir) {
		return nil
	}
	start := time.Now()
	stage := func(state, reason string, detail map[string]any) {
		t.stage(ctx, transcript.StageBody{Stage: "adapter", State: state, Reason: reason, DurationMS: time.Since(start).Milliseconds(), Detail: detail})
	}
	if !adapted(t.runtime) {
		f := fail(CodeNotInstalled, "This version of Managoat has no adapter for the runtime %s yet, so that its conversations do not run. Start one with an agent of the runtime claude, or of acp with a command in the machine.", name)
		stage("failed", f.problem.Code, nil)
		return f
	}
	t.waits(ctx, ForAdapter, "installing")
	err := runtime.Install(ctx, name, t.s.o.RuntimesDir, func(line string) { stage("started", "", map[string]any{"installing": name, "line": line}) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		f := fail(CodeNotInstalled, "The adapter of the runtime %s could not be installed on this host: run `managoat runtimes install %s` there.", t.runtime.Name(), name).because(err)
		stage("failed", f.problem.Code, map[string]any{"output": plain.String(err.Error())})
		return f
	}
	stage("done", "", map[string]any{"installed": name})
	return nil
}

// home makes the config home on a machine where the conversation has none yet, and the working directory. It answers with the
// MCP servers that the home is for.
func (t *turn) home(ctx context.Context, up *workspace.Up) (mcp.Servers, error) {
	before := t.c.HomeMachineID
	fresh := before == nil || *before != up.MachineID
	if fresh {
		t.waits(ctx, ForHome, "")
	}
	start := time.Now()
	var made bool
	var noFolder, err error
	var beside sync.WaitGroup
	beside.Go(func() { made, noFolder = t.folder(ctx, up) })
	l := t.basics()
	if l.MCP, err = t.servers(ctx, up); err == nil && fresh {
		if err = makeHome(ctx, up.Guest, t.runtime, l); err == nil {
			// A home that cannot take our keys is not made: the next prompt makes it anew.
			err = merge(ctx, up.Guest, t.runtime, l, path.Join(templateDir, t.runtime.Template()))
		}
	} else if err == nil {
		err = merge(ctx, up.Guest, t.runtime, l, "")
	}
	beside.Wait()
	if err != nil {
		f := failureOf(err)
		if f.problem.Code == CodeRuntimeTemplate {
			f.ends = fresh
			f.problem.Message += mending(up.Implicit)
		}
		t.stage(ctx, transcript.StageBody{Stage: "home", State: "failed", Reason: f.problem.Code, Detail: f.problem.Fields, DurationMS: time.Since(start).Milliseconds()})
		return nil, err
	}
	if fresh {
		if err := t.op.write(ctx, func(tx db.Tx) error { return tx.SetHome(ctx, &up.MachineID, t.c.ID) }); err != nil {
			return nil, err
		}
		t.c.HomeMachineID, t.c.RuntimeSessionID = &up.MachineID, ""
		t.stage(ctx, transcript.StageBody{Stage: "home", State: "done", DurationMS: time.Since(start).Milliseconds(), Detail: map[string]any{"path": l.Home}})
		if before != nil {
			t.notice(ctx, "new_machine", "The machine is a new one, set up from the environment as it is now. What lay on the old disk is gone, and the agent starts without its memory of this conversation.")
		}
	}
	if made {
		t.notice(ctx, "folder_made", "The folder "+t.c.Cwd+" was not there. It was made, and is empty.")
	}
	return l.MCP, noFolder
}

// folder makes the working directory, and tells whether it is new and may be a slip of the pen. The runtime's own needs no
// root: a launch cannot name it.
func (t *turn) folder(ctx context.Context, up *workspace.Up) (made bool, err error) {
	roots := append([]string{guest.Home}, up.Repositories...)
	if own := t.runtime.Dir(); t.c.Cwd == own && own != guest.Home {
		roots = []string{path.Dir(own)}
	}
	_, _, missing := up.Guest.Stat(ctx, roots, t.c.Cwd)
	if _, err := up.Guest.Mkdir(ctx, roots, t.c.Cwd, 0o755); err != nil {
		var file *guest.FileError
		if errors.As(err, &file) && file.Code != guest.ErrDiskFull {
			return false, fail(CodeDirectory, "The working directory %s cannot be used (%s): after links are followed it must lie in %s.", t.c.Cwd, file.Code, strings.Join(roots, ", ")).
				with("roots", roots).because(err)
		}
		return false, fmt.Errorf("make the working directory: %w", err)
	}
	return notFound(missing) && t.c.Cwd != t.runtime.Dir(), nil
}

// basics is what is known of a start of the runtime before it has a token.
func (t *turn) basics() runtime.Launch {
	_, model, _ := strings.Cut(t.c.Model, "/")
	l := runtime.Launch{ConversationID: t.c.ID, Home: homeOf(t.c.ID), CommandLine: t.agent.RuntimeCommand, System: t.agent.System, Model: model}
	for _, s := range t.agent.Skills {
		l.Skills = append(l.Skills, runtime.Skill{Name: s.Name, Content: s.Content})
	}
	return l
}

// process is the conversation's adapter for this server to hold.
func (t *turn) process(ctx context.Context, up *workspace.Up, a adapter, bound *inference.Bound) (*process, error) {
	keys, err := t.s.openKeys(ctx, t.c.TenantID, a)
	if err != nil {
		return nil, err
	}
	masked := slices.Concat(up.Masks, keys)
	l := t.basics()
	if bound != nil {
		masked = append(masked, bound.Key)
		l.Provider, l.Token = bound.Provider, keys[0].Reveal()
	}
	p := &process{tenant: t.c.TenantID, id: t.c.ID, workspace: t.c.WorkspaceID, cwd: t.c.Cwd, runtime: t.runtime, launch: l, session: t.c.RuntimeSessionID,
		caps: sdk.PromptCapabilities{Image: a.Images}, redactor: transcript.NewRedactor(masked...)}
	p.gate = transcript.NewGate(p.redactor)
	p.env = t.environment(up, a, l, keys)
	return p, nil
}

// environment of the adapter. Later wins: the runtime's defaults, our API, ids, the git identity, trust, the
// environment's variables and registries, secrets, and last the proxy and the model gateway, which nothing leads around.
func (t *turn) environment(up *workspace.Up, a adapter, l runtime.Launch, keys []secret.Value) map[string]string {
	env := t.runtime.Defaults(l)
	env["PATH"] = guest.Home + "/.local/bin:" + guest.SearchPath + ":" + guest.NodePath
	if a.Key != nil && len(keys) > 1 {
		env["MANAGOAT_TOKEN"], env["MANAGOAT_BASE_URL"] = keys[1].Reveal(), "http://"+guest.APIHost
	}
	env["MANAGOAT_CONVERSATION_ID"] = t.c.ID.String()
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		env["GIT_"+who+"_NAME"], env["GIT_"+who+"_EMAIL"] = t.agent.Name, "agent@managoat.invalid"
	}
	maps.Copy(env, up.Trust)
	maps.Copy(env, up.Registries)
	maps.Copy(env, up.Vars)
	for key, value := range up.Secrets {
		env[key] = value.Reveal()
	}
	maps.Copy(env, broker.ProxyEnv(keys[0].Reveal()))
	env[guest.RecordTag] = a.ExecID.String()
	set, unset := t.runtime.Fixed(l)
	for _, name := range unset {
		delete(env, name)
	}
	maps.Copy(env, set)
	return env
}

// launch starts the runtime and opens its session.
func (t *turn) launch(ctx context.Context, up *workspace.Up, bound *inference.Bound, servers mcp.Servers) (*process, error) {
	t.waits(ctx, ForAdapter, "")
	start := time.Now()
	a, plain, err := t.newAdapter(ctx, up)
	if err != nil {
		return nil, err
	}
	if err := t.s.o.Broker.PutToken(ctx, token(t.c, a, plain, bound)); err != nil {
		return nil, fmt.Errorf("tell the broker a token: %w", err)
	}
	p, err := t.process(ctx, up, a, bound)
	if err != nil {
		return nil, err
	}
	p.session, p.launch.MCP = "", servers
	if err := writeHome(ctx, up.Guest, p.launch.Home, t.runtime.Credentials(p.launch)); err != nil {
		return nil, errors.Join(err, t.s.dropAdapter(context.WithoutCancel(ctx), t.c.TenantID, t.c.ID, a))
	}
	err = up.Guest.Start(ctx, guest.Exec{ID: a.ExecID.String(), Argv: t.runtime.Argv(p.launch), Env: p.env, Dir: t.c.Cwd, User: guest.Sprite,
		Stdin: true, Spool: guest.SpoolProtocol, SpoolBytes: spoolBytes})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the runtime: %w", err), t.s.dropAdapter(context.WithoutCancel(ctx), t.c.TenantID, t.c.ID, a))
	}
	t.s.hold(p, a, up.Guest, nil, nil)
	if err := t.handshake(ctx, p, start); err != nil {
		t.abandon(ctx, p, up.Guest, a)
		return nil, err
	}
	return p, nil
}

// newAdapter writes the row of an adapter that is about to be started, with its token and its key, so that a crash leaves
// nothing that nobody knows of.
func (t *turn) newAdapter(ctx context.Context, up *workspace.Up) (adapter, secret.Value, error) {
	plain, _ := broker.NewToken()
	value := secret.New(plain)
	a := adapter{ExecID: uuid.Must(uuid.NewV7()), MachineID: up.MachineID, BootID: up.Guest.Hello().BootID, Version: runtime.Version(t.runtime.Installs()),
		StartedAt: time.Now(), Policy: up.Policy, Token: sealed{ID: uuid.Must(uuid.NewV7())}}
	err := t.op.write(ctx, func(tx db.Tx) (err error) {
		if a.Token.Value, a.Token.Version, err = t.s.o.Keys.Seal(ctx, tx.Queries, t.c.TenantID, a.Token.ID, value); err != nil {
			return err
		}
		a.Key = nil
		if t.c.SandboxApiAccess == AccessOwner {
			system := tenant.SystemActor(t.c.TenantID, "conversation")
			if err := identity.RevokeSandboxKeys(ctx, tx, system, t.c.ID); err != nil {
				return err
			}
			key, err := identity.MintSandboxKey(ctx, tx, system, t.c.ID, keyLifetime)
			if err != nil {
				return err
			}
			a.Key = &sealed{ID: key.ID}
			if a.Key.Value, a.Key.Version, err = t.s.o.Keys.Seal(ctx, tx.Queries, t.c.TenantID, key.ID, key.Plain); err != nil {
				return err
			}
		}
		return tx.SetAdapter(ctx, a.json(), t.c.ID)
	})
	return a, value, err
}

// handshake opens the protocol and the session.
func (t *turn) handshake(ctx context.Context, p *process, start time.Time) error {
	caps, err := p.initialize(ctx)
	if err != nil {
		return err
	}
	t.stage(ctx, transcript.StageBody{Stage: "adapter", State: "done", DurationMS: time.Since(start).Milliseconds(),
		Detail: map[string]any{"runtime": t.runtime.Name(), "version": runtime.Version(t.runtime.Installs())}})
	t.waits(ctx, ForSession, "")
	start = time.Now()
	if err := p.authenticate(ctx); err != nil {
		return err
	}
	session, state, err := p.openSession(ctx, t.c, caps)
	if err != nil {
		return err
	}
	ok := p.do(ctx, func() {
		p.session, p.caps = session, caps.PromptCapabilities
		err = p.checkpoint(ctx, t.op, func(a *adapter) { a.Session, a.Images = true, caps.PromptCapabilities.Image }, func(tx db.Tx) error {
			return tx.SetSession(ctx, session, t.c.ID)
		})
	})
	if err == nil && !ok {
		err = p.ended()
	}
	if err != nil {
		return err
	}
	if state == sessionLost {
		t.notice(ctx, "session_lost", "The runtime no longer has its session of this conversation. A new one was started: the agent does not remember what was said before.")
	}
	t.c.RuntimeSessionID = session
	t.stage(ctx, transcript.StageBody{Stage: "session", State: "done", DurationMS: time.Since(start).Milliseconds(), Detail: map[string]any{"session": string(state)}})
	return nil
}

// abandon ends an adapter that did not become ready.
func (t *turn) abandon(ctx context.Context, p *process, g *guest.Client, a adapter) {
	p.detach()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrites)
	defer cancel()
	err := errors.Join(killAdapter(ctx, g, a.ExecID.String()), t.s.dropAdapter(ctx, t.c.TenantID, t.c.ID, a))
	if err != nil {
		t.s.log.Warn("end an adapter that did not become ready", "conversation", t.c.ID, "error", err)
	}
}

// Reasons why a turn could not be taken up again.
const (
	noActiveSession   = "no_active_session"
	machineNotReached = "machine_not_reached"
	machineRestarted  = "machine_restarted"
)

// reattach takes up a turn whose prompt was sent before the server restarted: its adapter went on in the machine, and what
// it said since waits there. What cannot be found ends the turn; nothing is asked twice.
func (t *turn) reattach(ctx context.Context) error {
	start := time.Now()
	stage := func(state, reason, advice string) {
		t.stage(ctx, transcript.StageBody{Stage: "reattach", State: state, Reason: reason, Advice: advice, DurationMS: time.Since(start).Milliseconds()})
	}
	lost := func(reason, advice string, e ending) error {
		stage("failed", reason, advice)
		if err := t.op.write(ctx, func(tx db.Tx) error { return tx.DisuseAdapter(ctx, t.c.ID) }); err != nil {
			return err
		}
		return t.settle(ctx, e, nil)
	}
	orphan := func(reason string) error {
		e := ending{status: Interrupted, reason: ByInstanceRestart}
		if t.row.InterruptAsked != nil { // it was to end anyway
			e.reason = t.reason(ctx)
		}
		return lost(reason, "", e)
	}
	a, err := readAdapter(t.c.Adapter)
	if err != nil {
		return err
	}
	if a == nil || a.TurnID == nil || *a.TurnID != t.row.ID {
		return orphan(noActiveSession)
	}
	up, err := t.found(ctx)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case refusal.Is(err, refusal.ProviderDisabled):
		r, _ := refusal.As(err)
		return lost(string(r.Code), r.Message, failed(failureOf(err)))
	case err != nil:
		return orphan(machineNotReached)
	case !a.on(up):
		return orphan(machineRestarted)
	}
	if _, err := up.Guest.Status(ctx, a.ExecID.String()); err != nil {
		return orphan(noActiveSession)
	}
	bound, err := t.s.openBound(ctx, t.s.db.Tenant(t.c.TenantID), t.c)
	if err != nil {
		bound = nil // what it holds still runs; only its secret is not known here
	}
	p, err := t.process(ctx, up, *a, bound)
	if err != nil {
		return err
	}
	open, err := t.s.db.Tenant(t.c.TenantID).OpenToolCalls(ctx, t.c.ID, t.row.ID)
	if err != nil {
		return fmt.Errorf("read open tool calls: %w", err)
	}
	stage("done", "", "")
	t.s.hold(p, *a, up.Guest, t, open)
	return t.await(ctx, p)
}

// found waits a while for the machine to answer. It wakes nothing.
func (t *turn) found(ctx context.Context) (*workspace.Up, error) {
	ctx, cancel := context.WithTimeout(ctx, reattachFor)
	defer cancel()
	tick := time.NewTicker(reconnectEvery)
	defer tick.Stop()
	for {
		up, err := t.s.o.Workspaces.Reach(ctx, t.c.TenantID, t.c.WorkspaceID)
		if err == nil {
			return up, nil
		}
		if _, refused := refusal.As(err); refused && !refusal.Is(err, refusal.SandboxUnreachable) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-tick.C:
		}
	}
}

// runEnd is the operation behind the end of a conversation: its adapter is stopped and its config home removed. On a
// machine that is parked the home stays until the next prompt wakes it.
func (s *Service) runEnd(ctx context.Context, op *operation) error {
	var c queries.Conversation
	err := s.db.InTenant(ctx, op.row.TenantID, func(tx db.Tx) (err error) {
		c, err = tx.LockConversationAlways(ctx, *op.row.ConversationID)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the conversation that ends: %w", err)
	}
	if p := s.held(c.ID); p != nil {
		p.detach()
	}
	a, err := readAdapter(c.Adapter)
	if err != nil {
		return err
	}
	up, err := s.o.Workspaces.Peek(ctx, c.TenantID, c.WorkspaceID)
	if err == nil {
		err = s.clearMachine(ctx, up, c, a)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Info("what a conversation left on its machine is removed later", "conversation", c.ID, "error", err)
	}
	if a != nil {
		if err := s.dropAdapter(ctx, c.TenantID, c.ID, *a); err != nil {
			return err
		}
	}
	return op.write(ctx, func(tx db.Tx) error { return op.endWith(ctx, tx, "done") })
}

func (s *Service) clearMachine(ctx context.Context, up *workspace.Up, c queries.Conversation, a *adapter) error {
	if a != nil && a.on(up) {
		if err := stopAdapter(ctx, up.Guest, a.ExecID.String()); err != nil {
			return err
		}
	}
	if c.HomeMachineID == nil || *c.HomeMachineID != up.MachineID {
		return nil
	}
	return s.removeHome(ctx, up.Guest, c.TenantID, c.ID)
}

// stopAdapter lets the runtime leave by itself for a moment, and then ends its whole tree.
func stopAdapter(ctx context.Context, g *guest.Client, execID string) error {
	leave, cancel := context.WithTimeout(ctx, termGrace)
	defer cancel()
	if err := g.Signal(leave, execID, "SIGTERM"); err == nil {
		// Its end is all that is waited for, and not for long; what it prints is nobody's any more.
		_, _ = g.Follow(leave, execID, guest.Offsets{Stdout: math.MaxInt64, Stderr: math.MaxInt64}, nil)
	}
	return killAdapter(ctx, g, execID)
}
