package story

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"managoat/internal/client"
	"managoat/internal/testworld"
	"managoat/views/browsertest"
)

// screenshotsVariable names a directory for pictures of the pages, taken as the story passes them.
const screenshotsVariable = "MANAGOAT_SCREENSHOTS"

// console is a browser at a server, behind a line that can break.
type console struct {
	*browsertest.Browser
	base string
	tb   testing.TB
}

func (c *console) open(path string) { c.tb.Helper(); c.Open(c.base + path) }

// shows waits until an element's text holds every one of some texts.
func (c *console) shows(selector string, texts ...string) {
	c.tb.Helper()
	for _, text := range texts {
		c.Until(fmt.Sprintf("document.querySelector(%s)?.innerText.includes(%s)", literal(selector), literal(text)))
	}
}

// fill types into the fields of a form, by name. A list is chosen from by the text of its option.
func (c *console) fill(fields ...[2]string) {
	c.tb.Helper()
	for _, f := range fields {
		selector := fmt.Sprintf("main [name=%q]", f[0])
		c.Until(fmt.Sprintf("document.querySelector(%s)", literal(selector)))
		if c.True(fmt.Sprintf("document.querySelector(%s).tagName === 'SELECT'", literal(selector))) {
			c.Run(fmt.Sprintf("(() => { const s = document.querySelector(%s); s.value = [...s.options].find(o => o.text.includes(%s)).value })()", literal(selector), literal(f[1])))
			continue
		}
		c.Type(selector, f[1])
	}
}

// submit sends the form of a button by the button's text, and waits for the page that follows.
func (c *console) submit(text string) {
	c.tb.Helper()
	c.Run("window.left = true")
	c.Run(fmt.Sprintf("[...document.querySelectorAll('main button[type=submit]')].find(b => b.innerText === %s).click()", literal(text)))
	c.Until("!window.left && document.readyState === 'complete'")
}

// stay marks the page; stayed tells whether it is still the same one, never loaded again.
func (c *console) stay()        { c.tb.Helper(); c.Run("window.same = true") }
func (c *console) stayed() bool { c.tb.Helper(); return c.True("window.same") }

// picture takes pictures of the page as it is: light, dark, and as a phone shows it.
func (c *console) picture(name string) {
	c.tb.Helper()
	dir := os.Getenv(screenshotsVariable)
	if dir == "" {
		return
	}
	for _, v := range []struct {
		name          string
		width, height int64
		dark          bool
	}{{"phone", 390, 844, false}, {"dark", 1280, 860, true}, {"light", 1280, 860, false}} {
		c.Size(v.width, v.height)
		c.Dark(v.dark)
		if err := os.WriteFile(filepath.Join(dir, name+"-"+v.name+".png"), c.Screenshot(), 0o644); err != nil {
			c.tb.Fatal(err)
		}
	}
}

// transcript is what a conversation's page shows, without what clocks write into it.
func (c *console) transcript() string {
	c.tb.Helper()
	return c.Text(`(() => { const c = document.getElementById("transcript").cloneNode(true);
		for (const n of c.querySelectorAll("[data-since], [data-until], time")) n.textContent = "";
		for (const n of c.querySelectorAll("*")) { n.removeAttribute("data-htmx-powered"); n.removeAttribute("open"); }
		c.normalize(); return c.innerHTML; })()`)
}

func literal(s string) string { return string(must(json.Marshal(s))) }

// lines are those of a text that begin with a prefix, to see what is lost or doubled.
func lines(text, prefix string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func TestTheWholeStoryInABrowser(t *testing.T) {
	t.Parallel()
	s, world := own(t)
	repo := world.Git.Add("shop", testworld.Shop)
	modelKey := "sk-ant-api03-of-the-browser"
	world.Model.RequireKey(modelKey)
	line := newProxy(t, s, nil)
	c := &console{browsertest.New(t), line.url, t}
	c.Size(1280, 860)

	c.open("/")
	c.shows("main", "one-time link") // whoever comes without it is told that there is one

	// The link of the first start makes the account, once.
	link, found := "", false
	until(t, "the first start's link", func() bool {
		link, found = s.greeting.Line(s.url + "/setup?token=")
		return found
	})
	c.open("/setup?token=" + link)
	c.picture("setup-link")
	c.fill([2]string{"account", "The Shop"}, [2]string{"email", "owner@example.test"}, [2]string{"password", "a long password"})
	c.submit("Make the account")
	c.Until(`location.pathname === "/"`)
	c.open("/setup?token=" + link)
	c.shows("main", "cannot be used")

	// A key for the API, shown once: what the pages show is compared with it below.
	c.open("/settings/keys")
	c.fill([2]string{"name", "test"})
	c.submit("Make key")
	a := &Account{Client: &client.Client{Base: s.url, Key: c.Text("document.querySelector('#made-key').innerText")}, Email: "owner@example.test", Password: "a long password", tb: t, server: s}
	c.open("/settings/keys")
	if c.True(fmt.Sprintf("document.documentElement.outerHTML.includes(%s)", literal(a.Key))) {
		t.Error("the key is shown again")
	}
	c.open("/settings/credentials")
	c.fill([2]string{"name", "The model's"}, [2]string{"base_url", world.Model.URL}, [2]string{"key", modelKey})
	c.Run("document.querySelector('main [name=default]').checked = true")
	c.submit("Save credential")
	c.shows("main", "The model's", "default")
	if c.True(fmt.Sprintf("document.documentElement.outerHTML.includes(%s)", literal(modelKey))) {
		t.Error("the model key is shown")
	}

	// An environment: what is wrong is said beside its field, and what was typed stays.
	env := shopEnvironment(repo)
	c.open("/environments/new")
	c.fill([2]string{"name", "shop"}, [2]string{"packages.apt", testworld.HelloPackage.Name}, [2]string{"packages.npm", testworld.GreetPackage.Name})
	if !c.True("document.querySelector('.repos .repo input')") {
		c.Click("button[data-add='#repos']")
	}
	c.fill([2]string{"repositories.url", strings.Replace(repo.URL, "https:", "http:", 1)}, [2]string{"repositories.mount_path", shop}, [2]string{"setup_script", env["setup_script"].(string)})
	c.submit("Create environment")
	c.shows("main .repos", "https")
	if !c.True("document.querySelector('main [name=\"repositories.url\"]').getAttribute('aria-invalid') === 'true'") || c.Text("document.querySelector('main [name=name]').value") != "shop" {
		t.Error("the error is not beside its field, or the form forgot what was typed")
	}
	c.picture("environment-refused")
	c.fill([2]string{"repositories.url", repo.URL})
	c.submit("Create environment")
	c.shows("h1", "shop")
	c.open("/agents/new")
	c.fill([2]string{"name", "builder"}, [2]string{"runtime", "claude"}, [2]string{"model", "anthropic/claude-test-1"}, [2]string{"system", "You mend shops."})
	c.submit("Create agent")
	c.shows("h1", "builder")

	// The workspace's page shows each step as it runs, and is never loaded again.
	c.open("/workspaces/new")
	c.fill([2]string{"name", "storefront"}, [2]string{"environment_id", "shop"})
	c.submit("Create workspace")
	c.stay()
	c.Run(`window.seen = {}; const note = () => { for (const li of document.querySelectorAll("#setup li[id^=step-]")) (seen[li.id] ??= {})[li.querySelector(".row").className] = true; };
		note(); new MutationObserver(note).observe(document.body, {subtree: true, childList: true, attributes: true})`)
	c.shows("#log-setup_5fscript", testworld.ShopFails, "waiting for the branch")
	if c.True(`document.querySelector("#log-setup_5fscript").innerText.includes("line 1")`) {
		t.Error("the script did not wait")
	}
	if row := c.Text(`document.querySelector("#step-setup_5fscript .row").innerText`); !strings.Contains(row, "s") {
		t.Errorf("the running step shows no time: %q", row)
	}
	c.picture("workspace-setup")
	line.cut() // the page's stream breaks in the middle of the setup
	repo.Commit("go", "Go on", nil)
	c.shows("#workspace-state", "ready")
	c.shows("#setup", "Set up in")
	for _, step := range []string{"packages", "setup_script"} { // the others are too short to be sure to be seen
		if seen := c.Text(fmt.Sprintf("Object.keys(window.seen[%s] ?? {}).join()", literal("step-"+strings.ReplaceAll(step, "_", "_5f")))); !strings.Contains(seen, "run") {
			t.Errorf("the step %s was seen as %q only", step, seen)
		}
	}
	if !c.stayed() {
		t.Error("the page was loaded again")
	}
	log := c.Text(`document.querySelector("#log-setup_5fscript").textContent`)
	var want []string
	for n := range 20 {
		want = append(want, fmt.Sprint("line ", n+1))
	}
	if got := lines(log, "line "); !slices.Equal(got, want) {
		t.Errorf("the page shows of the script %q", got)
	}
	id := strings.TrimPrefix(c.Text("location.pathname"), "/workspaces/")
	if stored := a.steps(id)["setup_script"].Output; strings.TrimSpace(stored) != strings.TrimSpace(log) {
		t.Errorf("the page shows\n%s\nand the log is\n%s", log, stored)
	}
	c.picture("workspace-ready")

	// The conversation: the page shows all of it live, while the line breaks in its middle.
	gate := testworld.NewGate()
	defer gate.Open()
	replies := testworld.RepairShop(shop)
	replies[2] = append(testworld.Reply{replies[2][0], testworld.Say("I see. "), testworld.Wait(gate)}, replies[2][1:]...)
	world.Model.Script("mend the cart", replies...)
	world.Model.Script("what did you change", testworld.Reply{testworld.Say("An operator, nothing else.")})
	c.fill([2]string{"prompt", "Please mend the cart."}, [2]string{"agent_id", "builder"}, [2]string{"cwd", shop})
	c.submit("Start conversation")
	c.Until(`location.pathname.startsWith("/conversations/")`)
	c.stay()
	talk := strings.TrimPrefix(c.Text("location.pathname"), "/conversations/")
	c.shows("#transcript", "Please mend the cart.", "before I run its tests.", "run-tests.sh", "exit 1", "I see.")
	c.shows("#turn-state", "turn 1")
	c.picture("conversation-running")
	line.cut()
	gate.Open()
	c.shows("#transcript", "adds where it should multiply", "exit 0", "multiplies the price by the quantity now.", "Turn 1 completed")
	c.shows("#turn-state", "idle")
	if !c.stayed() {
		t.Error("the page was loaded again")
	}
	streamed := c.transcript()
	c.picture("conversation-done")
	c.open("/conversations/" + talk)
	if whole := c.transcript(); whole != streamed {
		at := 0
		for at < min(len(whole), len(streamed)) && whole[at] == streamed[at] {
			at++
		}
		t.Errorf("page and stream part:\n page   …%s\n stream …%s", whole[max(0, at-200):min(len(whole), at+300)], streamed[max(0, at-200):min(len(streamed), at+300)])
	}
	// The same rows come from the API.
	checkRepair(t, a, talk, 1)
	text := c.Text(`document.querySelector("#transcript").textContent`)
	for _, e := range a.rows(talk, "tool_result") {
		for printed := range strings.Lines(strings.TrimSpace(e.Body.Output)) {
			if e.Body.ExitCode != nil && !strings.Contains(text, strings.TrimSpace(printed)) {
				t.Errorf("the page does not show %q", printed)
			}
		}
	}

	// A second prompt, in place.
	c.stay()
	c.Type("#prompt", "And what did you change?")
	c.Run(`document.querySelector("#composer").requestSubmit()`)
	c.shows("#transcript", "An operator, nothing else.", "Turn 2 completed")
	if !c.stayed() {
		t.Error("the page was loaded again")
	}

	// The Diff tab, and the patch to take home.
	c.open("/workspaces/" + id + "/diff")
	c.shows("main", "cart.sh", "echo $(($1 * $2))", "echo $(($1 + $2))")
	c.picture("diff")
	href := c.Text(`document.querySelector("main a[download]").getAttribute("href")`)
	patch := filepath.Join(t.TempDir(), "shop.patch")
	owner := a.session()
	if err := os.WriteFile(patch, ask(t, owner, "GET", s.url+href, "", "", nil).body, 0o644); err != nil {
		t.Fatal(err)
	}
	clone := checkout(t, repo)
	git(t, clone, "apply", patch)
	if out, err := exec.CommandContext(t.Context(), filepath.Join(clone, "run-tests.sh")).CombinedOutput(); err != nil || !strings.Contains(string(out), testworld.ShopPasses) {
		t.Errorf("the tests with the patch applied: %v\n%s", err, out)
	}
	for _, tab := range []string{"", "/files", "/files?path=" + url.QueryEscape(shop+"/cart.sh"), "/git-status?path=" + url.QueryEscape(shop), "/setup-log", "/egress"} {
		c.open("/workspaces/" + id + tab)
		c.shows("h1", "storefront")
	}
	c.open("/")
	c.shows("main", "storefront")
	c.picture("home")
	for _, complaint := range c.Complaints() {
		if !strings.Contains(complaint, "net::ERR_") && !strings.Contains(complaint, "410") && !strings.Contains(complaint, "422") { // the line that we broke, the old link, the refused form
			t.Errorf("the browser complains: %s", complaint)
		}
	}

	// Without scripts the pages are whole, and forms work.
	world.Model.Script("without a script", testworld.Reply{testworld.Say("Plain as a page.")})
	c.Scripts(false)
	c.open("/conversations/" + talk)
	if text := c.Text(`document.querySelector("#transcript").textContent`); !strings.Contains(text, "multiplies the price by the quantity now.") || !strings.Contains(text, "An operator, nothing else.") {
		t.Errorf("without scripts the page shows %q", text)
	}
	c.picture("conversation-plain")
	c.Type("#prompt", "Now without a script.")
	c.Click("#composer button[type=submit]")
	c.shows("#turn-state", "turn 3")
	a.completed(talk, 3)
	c.open("/conversations/" + talk)
	c.shows("#transcript", "Now without a script.", "Plain as a page.")
	c.Scripts(true)

	// Another account's browser finds nothing of it.
	other := s.account(t)
	stranger := &console{browsertest.New(t), line.url, t}
	stranger.open("/sign-in")
	stranger.Type("[name=email]", other.Email)
	stranger.Type("[name=password]", other.Password)
	stranger.Click("button[type=submit]")
	stranger.Until(`location.pathname === "/"`)
	for _, path := range []string{"/workspaces/" + id, "/workspaces/" + id + "/diff", "/conversations/" + talk} {
		stranger.open(path)
		stranger.shows("h1", "Not found")
	}
	for _, path := range []string{"/", "/workspaces", "/conversations", "/environments", "/agents", "/audit"} {
		stranger.open(path)
		if stranger.True(`/storefront|builder|cart/.test(document.body.innerText)`) {
			t.Errorf("%s shows another account's: %s", path, stranger.Text("document.body.innerText"))
		}
	}
}
