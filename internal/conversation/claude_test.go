package conversation_test

import (
	"testing"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/testworld"
)

func TestClaudeRepairsACheckoutAndNothingItDoesIsHidden(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	repo := w.Outside.Git.Add("shop", testworld.Shop)
	const dir = "/home/sprite/shop"
	w.Outside.Model.Script("fix the cart", testworld.RepairShop(dir)...)
	w.Outside.Model.Script("and then", testworld.Reply{testworld.Say("Nothing else to do.")})
	ws := w.Workspace(w.Environment(func(in *environment.Input) {
		in.Repositories = []environment.Repository{{URL: repo.URL, MountPath: dir}}
	}))
	prompt := "Please fix the cart."
	c := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID, Cwd: dir, Prompt: &prompt})
	turn := w.Ended(c.ID, 1)
	for _, r := range w.Rows(c.ID) {
		t.Log(r.Seq, r.Type, string(r.Body))
	}
	t.Logf("%+v %+v %+v", turn, turn.Error, turn.Usage)
	turn = w.Ask(c.ID, "and then?")
	t.Logf("%+v %+v %+v", turn, turn.Error, turn.Usage)
}
