package conversation_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/agent"
	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/internal/vault"
	"managoat/internal/workspace"
)

func TestLaunchesThatAreRefused(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	env := w.Environment(func(in *environment.Input) {
		in.SetupScript = "sleep 600" // never needed ready here
		in.Repositories = []environment.Repository{{URL: "https://git.test/none.git", MountPath: "/home/sprite/shop"}}
	})
	other := w.Environment(nil)
	v, err := w.Vaults.Create(t.Context(), w.Owner.Actor, vault.Input{Name: "a vault"})
	if err != nil {
		t.Fatal(err)
	}
	ws := w.Workspace(env)
	a := w.Agent("")
	narrow := w.Agent("", func(c *agent.Config) { c.AllowedEnvironmentIDs, c.AllowedVaultIDs = []uuid.UUID{other}, []uuid.UUID{} })
	foreign := w.Account(t)
	implicit := w.Launch(conversation.CreateInput{AgentID: a, EnvironmentID: &other}).WorkspaceID
	text := func(s string) *string { return &s }
	nowhere := uuid.New()
	for name, c := range map[string]struct {
		in   conversation.CreateInput
		code refusal.Code
	}{
		"an agent that is not given":         {conversation.CreateInput{WorkspaceID: &ws.ID}, refusal.ValidationFailed},
		"no agent":                           {conversation.CreateInput{AgentID: nowhere}, refusal.AgentNotFound},
		"no workspace":                       {conversation.CreateInput{AgentID: a, WorkspaceID: &nowhere}, refusal.WorkspaceNotFound},
		"another's own machine":              {conversation.CreateInput{AgentID: a, WorkspaceID: &implicit}, refusal.ImplicitWorkspace},
		"another environment":                {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, EnvironmentID: &other}, refusal.WorkspaceFixesEnvironment},
		"a vault where there is none":        {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, VaultID: &v.ID}, refusal.WorkspaceFixesEnvironment},
		"an environment that is not allowed": {conversation.CreateInput{AgentID: narrow, WorkspaceID: &ws.ID}, refusal.EnvironmentNotAllowed},
		"a vault that is not allowed":        {conversation.CreateInput{AgentID: narrow, EnvironmentID: &other, VaultID: &v.ID}, refusal.VaultNotAllowed},
		"no environment":                     {conversation.CreateInput{AgentID: a, EnvironmentID: &nowhere}, refusal.EnvironmentNotFound},
		"no API access in a workspace":       {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, SandboxAPIAccess: "none"}, refusal.InvalidAPIAccess},
		"API access of another kind":         {conversation.CreateInput{AgentID: a, SandboxAPIAccess: "some"}, refusal.ValidationFailed},
		"cwd outside":                        {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Cwd: "/etc"}, refusal.CwdNotAllowed},
		"cwd that climbs out":                {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Cwd: "/home/sprite/../root"}, refusal.CwdNotAllowed},
		"cwd beside a mount":                 {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Cwd: "/home/sprite2"}, refusal.CwdNotAllowed},
		"cwd that is relative":               {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Cwd: "shop"}, refusal.CwdNotAllowed},
		"cwd with a NUL":                     {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Cwd: "/home/sprite/a\x00b"}, refusal.CwdNotAllowed},
		"an empty prompt":                    {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Prompt: text(" \n ")}, refusal.InvalidPrompt},
		"a prompt that is too long":          {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Prompt: text(strings.Repeat("é", 200_001))}, refusal.InvalidPrompt},
		"images without a prompt":            {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Images: []conversation.ImageInput{{Data: "aGk=", MediaType: "image/png"}}}, refusal.InvalidImages},
		"an image that is none":              {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Prompt: text("look"), Images: []conversation.ImageInput{{Data: "aGk=", MediaType: "image/png"}}}, refusal.InvalidImages},
		"a long title":                       {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Title: strings.Repeat("t", 121)}, refusal.ValidationFailed},
		"a long label":                       {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Labels: map[string]string{"k": strings.Repeat("v", 257)}}, refusal.ValidationFailed},
		"a model of another form":            {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Model: "gpt"}, refusal.ModelInvalid},
		"a model without a key":              {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Model: "openai/gpt-1"}, refusal.CredentialMissing},
		"a policy that asks":                 {conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, PermissionPolicy: map[string]any{"default": "ask"}}, refusal.NotAvailableYet},
	} {
		if _, err := w.Conversations.Create(t.Context(), w.Owner.Actor, c.in); !refusal.Is(err, c.code) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	if _, err := w.Conversations.Create(t.Context(), foreign.Actor, conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID}); !refusal.Is(err, refusal.AgentNotFound) {
		t.Errorf("another account's agent: %v", err)
	}
	sandbox := tenant.Actor{TenantID: w.Owner.TenantID, Kind: tenant.Sandbox, ID: "key", Scope: tenant.ScopeSandbox}
	_, err = w.Conversations.Create(t.Context(), sandbox, conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID})
	if r, ok := refusal.As(err); !ok || r.Code != refusal.InsufficientScope || r.Fields["required_scope"] != "full" {
		t.Errorf("a sandbox key that names a workspace: %v", err)
	}
	for _, cwd := range []string{"", "/home/sprite", "/home/sprite/shop", "/home/sprite/shop/deep/er", "/home/sprite/x/../y"} {
		c, err := w.Conversations.Create(t.Context(), w.Owner.Actor, conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Cwd: cwd})
		if err != nil || c.Status != conversation.Pending || c.TurnCount != 0 {
			t.Errorf("cwd %q: %+v %v", cwd, c, err)
		}
	}

	// An agent's own provider counts for a machine of its conversation's own only.
	if _, err := w.Instance.Owner(t).Exec(t.Context(), `update agent_versions set config = jsonb_set(config, '{sandbox_provider}', '"gone"') where agent_id = $1`, a); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Conversations.Create(t.Context(), w.Owner.Actor, conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID}); err != nil {
		t.Errorf("into a workspace of another provider than the agent's: %v", err)
	}
	if _, err := w.Conversations.Create(t.Context(), w.Owner.Actor, conversation.CreateInput{AgentID: a, EnvironmentID: &other}); !refusal.Is(err, refusal.ProviderDisabled) {
		t.Errorf("a machine of its own on a provider that is not offered: %v", err)
	}
}

func TestAnotherAccountSeesNothingOfAConversation(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent("")}).ID
	other := w.Account(t).Actor
	ctx := t.Context()
	s := w.Conversations
	for name, call := range map[string]func() error{
		"get":       func() error { _, err := s.Get(ctx, other, c); return err },
		"turns":     func() error { _, err := s.Turns(ctx, other, c, conversationtest.Page); return err },
		"turn":      func() error { _, err := s.Turn(ctx, other, c, 1); return err },
		"prompt":    func() error { _, err := s.Prompt(ctx, other, c, conversation.PromptInput{Prompt: "hi"}); return err },
		"interrupt": func() error { _, err := s.Interrupt(ctx, other, c, nil); return err },
		"terminate": func() error { _, err := s.Terminate(ctx, other, c); return err },
		"delete":    func() error { return s.Delete(ctx, other, c) },
		"patch":     func() error { _, err := s.Patch(ctx, other, c, conversation.PatchInput{}); return err },
		"read":      func() error { return s.MarkRead(ctx, other, c) },
		"answer":    func() error { _, err := s.Answer(ctx, other, c, uuid.New(), "x"); return err },
		"reach":     func() error { return s.Reach(ctx, other, c) },
	} {
		if err := call(); !refusal.Is(err, refusal.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if page, err := s.List(ctx, other, conversation.Filter{}, input.Page{}); err != nil || len(page.Items) != 0 {
		t.Errorf("the list: %+v %v", page, err)
	}
}

func TestAPromptWaitsForTheSetupAndShowsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	ws := w.Workspace(w.Environment(func(in *environment.Input) { in.SetupScript = "until test -e /home/sprite/go; do sleep 0.05; done" }))
	prompt := "say started"
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID, Prompt: &prompt, Title: "Mine"}).ID
	second := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID, Prompt: &prompt}).ID
	w.Until("the turn to wait for the script", func() bool {
		f := w.Turn(c, 1).WaitingFor
		return f != nil && f.Reason == conversation.ForSetup && f.Detail == "setup_script"
	})
	if at := w.Turn(c, 1).WaitingFor.Since; time.Since(at) > time.Minute || w.Turn(c, 1).Status != conversation.Running {
		t.Errorf("waits since %s", at)
	}
	w.DuringSetup(ws.ID, "touch /home/sprite/go")
	must(t, w.Ended(c, 1), conversation.Completed, "")
	must(t, w.Ended(second, 1), conversation.Completed, "")
	if v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c); err != nil || v.Title != "Mine" {
		t.Errorf("%q %v", v.Title, err)
	}
}

func TestTurnsThatWaitForASetupEndWithItsError(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	ws := w.Workspace(w.Environment(func(in *environment.Input) { in.SetupScript = "echo to the end >&2; exit 7" }))
	prompt := "say started"
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID, Prompt: &prompt}).ID
	turn := w.Ended(c, 1)
	must(t, turn, conversation.Failed, string(refusal.SetupFailed))
	if turn.Error.Fields["step"] != "setup_script" || turn.Error.Fields["exit_code"] != float64(7) || turn.Error.Fields["output_tail"] != "to the end" {
		t.Errorf("%+v", turn.Error)
	}
	if v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c); err != nil || v.Status != conversation.Idle {
		t.Errorf("in a workspace the next prompt tries again: %s %v", v.Status, err)
	}
}

func TestAConversationWithoutAWorkspaceHasOneOfItsOwn(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	env := w.Environment(func(in *environment.Input) { in.SetupScript = "echo setting up" })
	prompt := "say hello"
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent("", func(c *agent.Config) { c.EnvironmentID = &env }), Prompt: &prompt})
	must(t, w.Ended(c.ID, 1), conversation.Completed, "")
	ws, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, c.WorkspaceID)
	if err != nil || !ws.Implicit || ws.Status != workspace.Ready {
		t.Fatalf("%+v %v", ws, err)
	}
	if got := stages(w, c.ID); !strings.Contains(got, "setup_script started") || !strings.Contains(got, "setup_script done") {
		t.Errorf("stages: %s", got)
	}
	var lines []any
	for _, b := range conversationtest.Bodies[transcript.StageBody](w, c.ID, transcript.Stage) {
		if l, ok := b.Detail["lines"].([]any); ok && b.Stage == "setup_script" {
			lines = append(lines, l...)
		}
	}
	if len(lines) != 1 || lines[0] != "setting up\n" {
		t.Errorf("lines %q", lines)
	}
	if err := w.Conversations.Delete(t.Context(), w.Owner.Actor, c.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c.ID); !refusal.Is(err, refusal.NotFound) {
		t.Errorf("a deleted conversation: %v", err)
	}
	w.Until("its workspace to go", func() bool {
		_, err := w.Workspaces.Get(context.Background(), w.Owner.Actor, c.WorkspaceID)
		return refusal.Is(err, refusal.NotFound)
	})
}

func TestAConversationWhoseOwnSetupFailsIsFailed(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	env := w.Environment(func(in *environment.Input) { in.SetupScript = "exit 7" })
	prompt := "say hello"
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), EnvironmentID: &env, Prompt: &prompt}).ID
	must(t, w.Ended(c, 1), conversation.Failed, string(refusal.SetupFailed))
	v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c)
	if err != nil || v.Status != conversation.Failed || v.Error == nil || v.Error.Code != string(refusal.SetupFailed) {
		t.Errorf("%+v %v", v, err)
	}
	if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: "again"}); !refusal.Is(err, refusal.ConversationTerminated) {
		t.Errorf("a prompt into it: %v", err)
	}
}

func TestTwoConversationsWorkSideBySideInOneFolder(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	a := w.Agent("")
	one := w.Launch(conversation.CreateInput{AgentID: a, WorkspaceID: ws, Cwd: "/home/sprite/work"}).ID
	two := w.Launch(conversation.CreateInput{AgentID: a, WorkspaceID: ws, Cwd: "/home/sprite/work"}).ID
	id := uuid.NewString()
	// Each waits for the other: they run at the same time.
	w.Prompt(one, "touch one-"+id, "wait two-"+id, "cwd")
	w.Prompt(two, "touch two-"+id, "wait one-"+id, "cwd")
	must(t, w.Ended(one, 1), conversation.Completed, "")
	must(t, w.Ended(two, 1), conversation.Completed, "")
	if w.Said(one) != "/home/sprite/work" || w.Said(two) != "/home/sprite/work" {
		t.Errorf("they worked in %q and %q", w.Said(one), w.Said(two))
	}
	for _, c := range []uuid.UUID{one, two} {
		if !exists(t, w, *ws, "/home/sprite/.managoat/c/"+c.String()) {
			t.Errorf("conversation %s has no config home", c)
		}
	}
	counts, err := w.Conversations.ConversationCounts(t.Context(), w.Owner.TenantID, []uuid.UUID{*ws})
	if err != nil || counts[*ws] != 2 {
		t.Errorf("counts %v %v", counts, err)
	}
	dirs, err := w.Conversations.LiveDirs(t.Context(), w.Owner.TenantID, *ws)
	if err != nil || len(dirs) != 2 || dirs[0] != "/home/sprite/work" {
		t.Errorf("dirs %v %v", dirs, err)
	}
	if values, err := w.Conversations.LiveSecrets(t.Context(), w.Owner.TenantID, *ws); err != nil || len(values) != 4 {
		t.Errorf("%d live secrets, %v", len(values), err)
	}
	if err := w.Workspaces.Delete(t.Context(), w.Owner.Actor, *ws); err != nil {
		t.Fatal(err)
	}
	for _, c := range []uuid.UUID{one, two} {
		w.Until("the conversations to end with the workspace", func() bool {
			v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c)
			return err == nil && v.Status == conversation.Terminated
		})
	}
}

// A folder that is not there is made, since agents begin projects; a mistyped one must not pass unseen.
func TestAFolderThatWasNotThereIsToldOf(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	ws := w.Workspace(w.Environment(nil))
	for i, want := range []string{"folder_made", ""} {
		c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID, Cwd: "/home/sprite/projekt"}).ID
		must(t, w.Ask(c, "cwd"), conversation.Completed, "")
		if got := notices(w, c); got != want {
			t.Errorf("conversation %d was told %q, want %q", i+1, got, want)
		}
	}
}

func TestACwdThatALinkLeadsOutOfFailsTheTurn(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	run(t, w, *ws, "ln -s /etc /home/sprite/away")
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws, Cwd: "/home/sprite/away/deep"}).ID
	must(t, w.Ask(c, "cwd"), conversation.Failed, conversation.CodeDirectory)
}

func TestPromptsAreCountedAgainstTheAccountsQuota(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t, conversationtest.Options{Prompts: 1})
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent("")}).ID
	in := conversation.PromptInput{Prompt: "say hi", Queue: true}
	var err error
	for range 3 { // a minute may end between two of them
		_, err = w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, in)
	}
	if r, ok := refusal.As(err); !ok || r.Code != refusal.QuotaExceeded || r.Fields["quota"] != "prompts_per_minute" {
		t.Fatalf("%v", err)
	}
	if page, err := w.Conversations.Turns(t.Context(), w.Owner.Actor, c, input.Page{}); err != nil || len(page.Items) > 2 {
		t.Errorf("a refused prompt left a turn: %+v %v", page, err)
	}
}

func TestAConversationKeepsTheCredentialItWasBoundTo(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	a := w.Claude() // makes the account's key
	c := w.Launch(conversation.CreateInput{AgentID: a})
	if c.InferenceCredentialID == nil {
		t.Fatal("it is bound to nothing")
	}
	edit := func(in *inference.Input) error {
		in.Key = secretOf("sk-ant-another-key")
		return nil
	}
	if _, err := w.Inference.Update(t.Context(), w.Owner.Actor, *c.InferenceCredentialID, edit); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c.ID, conversation.PromptInput{Prompt: "hello"}); !refusal.Is(err, refusal.InferenceSourceChanged) {
		t.Errorf("a prompt after the key was changed: %v", err)
	}
	if fresh := w.Launch(conversation.CreateInput{AgentID: a}); *fresh.InferenceCredentialID != *c.InferenceCredentialID {
		t.Errorf("a new conversation is bound to %s", *fresh.InferenceCredentialID)
	}
}

func TestListsFilterAndTitlesChange(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	env := w.Environment(func(in *environment.Input) { in.SetupScript = "sleep 600" })
	ws := w.Workspace(env)
	a, b := w.Agent(""), w.Agent("")
	prompt := "Mend the  cart\nplease"
	one := w.Launch(conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID, Prompt: &prompt, Labels: map[string]string{"team": "shop"}})
	two := w.Launch(conversation.CreateInput{AgentID: b, WorkspaceID: &ws.ID, Title: "Review"})
	if one.Title != "Mend the cart" || one.FirstPrompt != prompt || one.CurrentTurn == nil || two.Title != "Review" {
		t.Errorf("titles %q, %q", one.Title, two.Title)
	}
	for name, c := range map[string]struct {
		filter conversation.Filter
		want   int
	}{
		"all":                  {conversation.Filter{}, 2},
		"by agent":             {conversation.Filter{AgentID: &a}, 1},
		"by workspace":         {conversation.Filter{WorkspaceID: &ws.ID}, 2},
		"by label":             {conversation.Filter{Label: "team:shop"}, 1},
		"by another label":     {conversation.Filter{Label: "team:bank"}, 0},
		"by text of a prompt":  {conversation.Filter{Text: "PLEASE"}, 1},
		"by text of a title":   {conversation.Filter{Text: "review"}, 1},
		"by text with a %":     {conversation.Filter{Text: "%"}, 0},
		"by status":            {conversation.Filter{Status: conversation.Terminated}, 0},
		"by the other status":  {conversation.Filter{Status: conversation.Running}, 1},
		"by status and by all": {conversation.Filter{Status: conversation.Pending, AgentID: &b, Text: "Rev"}, 1},
	} {
		w.Until(name, func() bool { // the first one's turn starts some time soon
			page, err := w.Conversations.List(t.Context(), w.Owner.Actor, c.filter, input.Page{})
			if err != nil {
				t.Fatal(err)
			}
			return len(page.Items) == c.want
		})
	}
	first, err := w.Conversations.List(t.Context(), w.Owner.Actor, conversation.Filter{}, input.Page{Limit: 1})
	if err != nil || !first.HasMore {
		t.Fatalf("%+v %v", first, err)
	}
	second, err := w.Conversations.List(t.Context(), w.Owner.Actor, conversation.Filter{}, input.Page{Limit: 1, Cursor: first.Next})
	if err != nil || second.HasMore || second.Items[0].ID == first.Items[0].ID {
		t.Errorf("the second page: %+v %v", second, err)
	}
	if _, err := w.Conversations.List(t.Context(), w.Owner.Actor, conversation.Filter{}, input.Page{Cursor: "nonsense"}); !refusal.Is(err, refusal.ValidationFailed) {
		t.Errorf("a cursor of nobody's: %v", err)
	}
	title, labels := "Another", map[string]string{"a": "b"}
	if v, err := w.Conversations.Patch(t.Context(), w.Owner.Actor, one.ID, conversation.PatchInput{Title: &title, Labels: &labels}); err != nil || v.Title != title || v.Labels["a"] != "b" || len(v.Labels) != 1 {
		t.Errorf("%+v %v", v, err)
	}
	empty := ""
	if v, err := w.Conversations.Patch(t.Context(), w.Owner.Actor, one.ID, conversation.PatchInput{Title: &empty}); err != nil || v.Title != "Mend the cart" {
		t.Errorf("%q %v", v.Title, err)
	}
	if err := w.Conversations.MarkRead(t.Context(), w.Owner.Actor, one.ID); err != nil {
		t.Fatal(err)
	}
	if v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, one.ID); err != nil || v.LastReadAt == nil {
		t.Errorf("%+v %v", v.LastReadAt, err)
	}
}
