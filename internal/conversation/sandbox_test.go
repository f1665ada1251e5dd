package conversation_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
)

// What a machine's keys may do, and what separates the conversations of one machine: nothing.
func TestSandboxKeys(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)

	t.Run("a family is as deep and as large as agreed, each on a machine of its own", func(t *testing.T) {
		env := w.Environment(nil)
		in := conversation.CreateInput{AgentID: w.Agent(""), EnvironmentID: &env}
		as := func(c uuid.UUID) tenant.Actor {
			return tenant.Actor{TenantID: w.Owner.TenantID, Kind: tenant.Sandbox, ID: uuid.NewString(), Scope: tenant.ScopeSandbox, ConversationID: c}
		}
		root := w.Launch(in)
		var children []conversation.Conversation
		for range 8 {
			child, err := w.Conversations.Create(t.Context(), as(root.ID), in)
			if err != nil || child.ParentConversationID == nil || *child.ParentConversationID != root.ID || !child.Workspace.Implicit || child.WorkspaceID == root.WorkspaceID {
				t.Fatalf("%+v %v", child, err)
			}
			children = append(children, child)
		}
		full := func(parent uuid.UUID) {
			t.Helper()
			_, err := w.Conversations.Create(t.Context(), as(parent), in)
			if r, ok := refusal.As(err); !ok || r.Code != refusal.QuotaExceeded || r.Fields["quota"] != "child_conversations" {
				t.Errorf("one more: %v", err)
			}
		}
		full(root.ID)
		if _, err := w.Conversations.Terminate(t.Context(), w.Owner.Actor, children[7].ID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Conversations.Create(t.Context(), as(root.ID), in); err != nil {
			t.Errorf("in the place of one that ended: %v", err)
		}
		grandchild, err := w.Conversations.Create(t.Context(), as(children[0].ID), in)
		if err != nil {
			t.Fatal(err)
		}
		full(grandchild.ID)

		for name, c := range map[string]struct {
			as, of uuid.UUID
			sees   bool
		}{
			"itself":       {children[0].ID, children[0].ID, true},
			"its child":    {root.ID, children[0].ID, true},
			"its parent":   {children[0].ID, root.ID, false},
			"a sibling":    {children[0].ID, children[1].ID, false},
			"a grandchild": {root.ID, grandchild.ID, false},
		} {
			_, err := w.Conversations.Get(t.Context(), as(c.as), c.of)
			_, prompted := w.Conversations.Prompt(t.Context(), as(c.as), c.of, conversation.PromptInput{Prompt: "say hi"})
			busy := refusal.Is(prompted, refusal.ConversationBusy)
			if c.sees && (err != nil || prompted != nil && !busy) || !c.sees && (!refusal.Is(err, refusal.NotFound) || !refusal.Is(prompted, refusal.NotFound)) {
				t.Errorf("%s: seen %v, prompted %v", name, err, prompted)
			}
		}
		for _, c := range append(children, root, grandchild) {
			if err := w.Conversations.Delete(t.Context(), w.Owner.Actor, c.ID); err != nil {
				t.Error(err)
			}
		}
		_, err = w.Conversations.Create(t.Context(), as(root.ID), in)
		if !refusal.Is(err, refusal.ConversationTerminated) && !refusal.Is(err, refusal.NotFound) {
			t.Errorf("a child of one that has ended: %v", err)
		}
	})

	t.Run("each conversation has its own until its next start, and their homes are open to each other", func(t *testing.T) {
		ws := w.Ready(w.Workspace(w.Environment(nil)).ID)
		first := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID})
		second := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID})
		for _, c := range []conversation.Conversation{first, second} {
			must(t, w.Ask(c.ID, "say hi"), conversation.Completed, "")
		}
		// held are the keys that the machine's adapters were started with, by conversation, as the host sees them.
		held := func() map[string]string {
			t.Helper()
			keys := map[string]string{}
			all, err := filepath.Glob("/proc/[0-9]*/environ")
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range all {
				raw, _ := os.ReadFile(file) // others' processes end meanwhile
				env := map[string]string{}
				for v := range strings.SplitSeq(string(raw), "\x00") {
					name, value, _ := strings.Cut(v, "=")
					env[name] = value
				}
				if id := env["MANAGOAT_CONVERSATION_ID"]; id == first.ID.String() || id == second.ID.String() {
					keys[id] = env["MANAGOAT_TOKEN"]
				}
			}
			return keys
		}
		before := held()
		for _, c := range []conversation.Conversation{first, second} {
			id := c.ID.String()
			who, err := w.People.AuthenticateKey(t.Context(), before[id])
			if err != nil || who.Scope != tenant.ScopeSandbox || who.ConversationID != c.ID {
				t.Errorf("the key of %s is %+v %v", id, who, err)
			}
			if got := w.InMachine(ws.ID, "echo planted > ~/.managoat/c/"+id+"/CLAUDE.md && cat ~/.managoat/c/"+id+"/CLAUDE.md"); got != "planted" {
				t.Errorf("another process reads %q in its home", got)
			}
		}
		caps, err := w.Provider.Capabilities(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if out := w.InMachine(ws.ID, "cat /proc/$(pgrep -xo agent)/environ 2>&1 || true"); caps.UIDRange && !strings.Contains(out, "Permission denied") {
			t.Errorf("an adapter's environment, read by a command that is not its own: %q", out)
		}
		var days float64
		if err := w.Instance.Owner(t).QueryRow(t.Context(), "select extract(epoch from max(expires_at) - now()) / 86400 from api_keys where conversation_id = $1 and revoked_at is null", first.ID).Scan(&days); err != nil || days < 6.9 || days > 7 {
			t.Errorf("it lasts for %.2f days, %v", days, err)
		}

		w.StopMachine(ws.ID)
		must(t, w.Ask(first.ID, "say back"), conversation.Completed, "")
		after := held()
		if after[first.ID.String()] == "" || after[first.ID.String()] == before[first.ID.String()] {
			t.Errorf("its key before the wake %q and after it %q", before[first.ID.String()], after[first.ID.String()])
		}
		if _, err := w.People.AuthenticateKey(t.Context(), before[first.ID.String()]); !refusal.Is(err, refusal.KeyRevoked) {
			t.Errorf("the key of before: %v", err)
		}
		if _, ok := after[second.ID.String()]; ok {
			t.Error("a wake for one conversation started the other's adapter")
		}
	})

	t.Run("without API access there is none, on a machine of one's own", func(t *testing.T) {
		env := w.Environment(nil)
		c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), EnvironmentID: &env, SandboxAPIAccess: "none"})
		must(t, w.Ask(c.ID, "env MANAGOAT_TOKEN", "env MANAGOAT_BASE_URL", "env MANAGOAT_CONVERSATION_ID"), conversation.Completed, "")
		if said := w.Said(c.ID); said != "MANAGOAT_TOKEN=MANAGOAT_BASE_URL=MANAGOAT_CONVERSATION_ID="+c.ID.String() {
			t.Errorf("it has %q", said)
		}
	})
}
