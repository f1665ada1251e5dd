package story

import (
	"fmt"
	"strings"
	"testing"

	"managoat/views/browsertest"
)

// A workspace's life, on its page: made, failed, mended, retried, behind its environment, rebuilt, deleted.
func TestTheLifeOfAWorkspaceInABrowser(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	a := s.account(t)
	env := a.environment(body{"name": "broken", "setup_script": "echo 'line one'; sleep 1; echo 'it breaks'; exit 7"})
	c := &console{browsertest.New(t), s.url, t}
	c.open("/sign-in")
	c.fill([2]string{"email", a.Email}, [2]string{"password", a.Password})
	c.submit("Sign in")
	c.Until(`location.pathname === "/"`)

	c.open("/workspaces/new")
	c.fill([2]string{"name", "shop"}, [2]string{"environment_id", "broken"})
	c.submit("Create workspace")
	c.stay()
	c.shows("#log-setup_5fscript", "line one")
	c.shows("#workspace-state", "failed")
	c.shows("#step-setup_5fscript", "exit 7 after", "it breaks", "Retry setup", "Edit environment", "Copy diagnostics")
	if !c.stayed() {
		t.Error("the page was loaded again")
	}
	page := c.Text("location.pathname")
	edit := func(script string) {
		t.Helper()
		a.do("PATCH", "/api/environments/"+env, body{"setup_script": script})
	}
	edit("mkdir shop; cd shop; git init -q; echo x > 'not pushed'")
	c.submit("Retry setup")
	c.shows("#workspace-state", "ready")
	c.stay()
	edit("echo mended")
	c.shows("#workspace-state", "Rebuild needed", "setup script changed") // as it happens
	if !c.stayed() {
		t.Error("the page was loaded again")
	}
	c.picture("workspace-stale")
	c.Click("#workspace-state .banner a")
	c.shows("h1", "Rebuild shop")
	c.shows("main", "~/shop", "1 untracked", "not pushed", "setup script changed")
	c.picture("rebuild")
	c.submit("Rebuild workspace")
	c.Until(fmt.Sprintf("location.pathname === %s", literal(page)))
	c.shows("#workspace-state", "ready")
	c.shows("#setup", "Set up in")
	if text := c.Text(`document.querySelector("#workspace-state").innerText`); strings.Contains(text, "Rebuild needed") {
		t.Errorf("it is stale still: %s", text)
	}
	if log := a.steps(strings.TrimPrefix(page, "/workspaces/"))["setup_script"].Output; log != "mended\n" {
		t.Errorf("the script printed %q", log)
	}
	c.Run(`document.querySelector("#delete").open = true`)
	c.fill([2]string{"confirm", "shop"})
	c.submit("Delete workspace")
	c.Until(`location.pathname === "/workspaces"`)
	c.shows("main", "Deleting shop")
}
