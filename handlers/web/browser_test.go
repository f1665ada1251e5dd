package web_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/conversation"
	"managoat/internal/environment"
	"managoat/internal/identity/identitytest"
	"managoat/views/browsertest"
)

// items is what the page shows of a conversation, without what clocks write into it.
const items = `(() => { const c = document.getElementById("transcript").cloneNode(true);
	for (const n of c.querySelectorAll("[data-since], [data-until], time")) n.textContent = "";
	for (const n of c.querySelectorAll("*")) n.removeAttribute("data-htmx-powered");
	c.normalize(); return c.innerHTML; })()`

func signIn(b *browsertest.Browser, s *site) {
	b.Open(s.url + "/sign-in")
	b.Type("#f-email", s.Owner.Email)
	b.Type("#f-password", identitytest.Password)
	b.Click("button[type=submit]")
	b.Until(`location.pathname === "/"`)
}

func lastSegment(path string) uuid.UUID { return uuid.MustParse(path[strings.LastIndex(path, "/")+1:]) }

// A person builds a workspace that fails, mends it, and works in it, without a single reload of a page.
func theConsoleIsLive(t *testing.T, s *site) {
	env := s.Environment(func(in *environment.Input) {
		in.Name = "shop"
		in.SetupScript = "for i in 1 2 3 4 5; do printf '\\033[32mline %s\\033[0m\\n' $i; sleep 0.2; done\necho broken >&2\nexit 7\n"
	})
	agent := s.Agent("")
	b := browsertest.New(t)
	signIn(b, s)

	b.Open(s.url + "/workspaces/new?environment_id=" + env.String())
	b.Type("#f-name", "storefront")
	b.Click("main form button.primary")
	b.Until(`document.querySelector("#workspace-state h1")?.textContent === "storefront"`)
	b.Run(`window.same = true`)
	b.Until(`document.querySelector("#log-setup_5fscript")?.innerText.includes("line 1")`)
	b.Until(`document.querySelector("#workspace-state").innerText.includes("failed")`)
	b.Until(`document.querySelector("#step-setup_5fscript").innerText.includes("exit 7 after")`)
	if log := b.Text(`document.querySelector("#log-setup_5fscript").innerText`); log != "line 1\nline 2\nline 3\nline 4\nline 5\nbroken" {
		t.Errorf("the failed step shows %q", log)
	}
	if !b.True(`window.same && document.querySelector("#log-setup_5fscript .a-2")`) {
		t.Error("the page was loaded again, or has no colours")
	}
	space := lastSegment(b.Text("location.pathname"))
	if _, err := s.Environments.Update(t.Context(), s.Owner.Actor, env, func(in *environment.Input) error {
		in.SetupScript = "echo mended\n"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	b.Click("#setup form[action$=retry] button")
	b.Until(`document.querySelector("#workspace-state").innerText.includes("ready")`)
	b.Until(`document.querySelector("#setup summary")?.innerText.includes("Set up in")`)
	if b.Text(`document.querySelector("#tabs .count").innerText`) != "0" {
		t.Error("a new workspace has conversations")
	}
	s.Launch(conversation.CreateInput{AgentID: agent, WorkspaceID: &space, Title: "Meanwhile"})
	b.Until(`document.querySelector("#tabs .count").innerText === "1" && document.querySelector("#list").innerText.includes("Meanwhile")`)

	b.Type("#f-prompt", "say Reading first.")
	b.Run(fmt.Sprintf(`document.querySelector("#f-agent_5fid").value = %q`, agent))
	b.Click("form.start button.primary")
	b.Until(`location.pathname.startsWith("/conversations/")`)
	id := lastSegment(b.Text("location.pathname"))
	b.Until(`document.querySelector("#transcript").innerText.includes("Turn 1 completed")`)
	b.Run(`window.same = true`)

	// The stream is cut in the middle of a turn; the page goes on where it was, without a reload.
	b.Type("#prompt", "say First **half**")
	b.Run(`document.querySelector("#prompt").value = ["think hmm", "terminal echo one; sleep 0.3; echo two; exit 3", "sayin First |**ha|lf**, then", "wait /tmp/go", "say  the rest.", "terminal echo last"].join("\n")`)
	b.Press("\x0d") // a plain Enter is text
	b.Run(`document.querySelector("#composer").requestSubmit()`)
	b.Until(`document.querySelector("#transcript").innerText.includes("half, then")`)
	b.Until(`document.querySelector("#turn-state").innerText.includes("turn 2") && document.querySelector("#interrupt")`)
	b.Until(`document.querySelector("#prompt").value === ""`)
	b.Run(`document.querySelector("#stream")._htmx.sse.reader.cancel()`)
	s.InMachine(space, "touch /tmp/go")
	b.Until(`document.querySelector("#transcript").innerText.includes("then the rest.")`)
	b.Until(`document.querySelector("#transcript").innerText.includes("Turn 2 completed")`)
	b.Until(`document.querySelector("#turn-state").innerText.includes("idle") && !document.querySelector("#interrupt") && document.querySelector("#working").innerText === ""`)
	if !b.True(`window.same`) {
		t.Error("the page was loaded again")
	}
	streamed := b.Text(items)
	b.Open(s.url + "/conversations/" + id.String())
	if page := b.Text(items); page != streamed {
		at := 0
		for at < min(len(page), len(streamed)) && page[at] == streamed[at] {
			at++
		}
		t.Errorf("page and stream part:\n page   …%s\n stream …%s", around(page, at), around(streamed, at))
	}

	// What is sent while a turn runs waits in sight, and can be withdrawn; a refused prompt stays in the composer; Esc asks
	// before it interrupts.
	b.Run(`window.same = true`)
	b.Type("#prompt", "sleep 600000")
	b.Run(`document.querySelector("#composer").requestSubmit()`)
	b.Until(`document.querySelector("#interrupt")`)
	b.Until(`document.querySelector("#prompt").value === ""`)
	b.Until(`document.querySelector("#send").innerText === "Queue"`)
	for _, text := range []string{"say never", "say afterwards"} {
		b.Type("#prompt", text)
		b.Run(`document.querySelector("#composer").requestSubmit()`)
		b.Until(fmt.Sprintf(`document.querySelector("#queue").innerText.includes(%q)`, text))
		b.Until(`document.querySelector("#prompt").value === ""`)
	}
	b.Click("#queue li:first-child button")
	b.Until(`document.querySelectorAll("#queue li").length === 1`)
	b.Type("#prompt", " ")
	b.Run(`document.querySelector("#composer").requestSubmit()`)
	b.Until(`document.querySelector("#composer-note").innerText.includes("invalid_prompt")`)
	if got := b.Text(`document.querySelector("#prompt").value`); got != " " {
		t.Errorf("the composer holds %q", got)
	}
	b.Until(`document.querySelector("#transcript").innerText.includes("sleep 600000")`)
	b.Press("\x1b")
	b.Until(`document.querySelector("#interrupt-dialog").open`)
	b.Click("#interrupt-dialog button.danger")
	b.Until(`document.querySelector("#transcript").innerText.includes("Turn 3 interrupted")`)
	b.Until(`document.querySelector("#transcript").innerText.includes("Turn 5 completed")`)
	b.Until(`document.querySelector("#turn-state").innerText.includes("idle") && document.querySelector("#send").innerText === "Send" && !document.querySelector("#queue li")`)
	if b.True(`document.querySelector("#transcript").innerText.includes("say never")`) || !b.True("window.same") {
		t.Error("a withdrawn prompt is shown as sent, or the page was loaded again")
	}

	// A conversation that ends closes its page's stream and its composer.
	b.Run(`document.querySelectorAll(".aside details").forEach(d => d.open = true)`)
	b.Click("form[action$=terminate] button")
	b.Until(`document.querySelector("#end").innerText.includes("has ended")`)
	for _, line := range b.Complaints() {
		if !strings.Contains(line, "422 (Unprocessable Entity)") { // the refused prompt
			t.Error(line)
		}
	}
}

func around(s string, at int) string { return s[max(0, at-200):min(len(s), at+300)] }

// What an agent, a file or a name says never becomes part of the page.
func hostileTextStaysText(t *testing.T, s *site) {
	attack := `<img src=x onerror="document.title='owned'"><script>document.title="owned"</script><hx-partial hx-target="#transcript">gone</hx-partial>`
	env := s.Environment(func(in *environment.Input) {
		in.Name = attack[:100]
		in.SetupScript = "cat <<'END'\n" + attack + "\nEND\nmkdir -p ~/d && touch ~/d/'<img src=x onerror=alert(1)>'\n"
	})
	agent := s.Agent("")
	b := browsertest.New(t)
	signIn(b, s)
	b.Open(s.url + "/workspaces/new?environment_id=" + env.String())
	b.Type("#f-name", attack[:100])
	b.Click("main form button.primary")
	b.Until(`document.querySelector("#workspace-state")?.innerText.includes("ready")`)
	space := b.Text("location.pathname")
	for _, tab := range []string{"/setup-log", "/files?path=d", "/egress", ""} {
		b.Open(s.url + space + tab)
	}
	b.Type("#f-prompt", "say x")
	b.Run(fmt.Sprintf(`document.querySelector("#f-prompt").value = ["say " + %[1]q, "say [x](javascript:alert(1)) ![y](https://evil.example/pixel.png)", "think " + %[1]q, "plan " + %[1]q, "title " + %[1]q, "tool " + %[1]q, "terminal echo '" + %[2]q + "'"].join("\n")`, attack, strings.ReplaceAll(attack, "'", "")))
	b.Run(fmt.Sprintf(`document.querySelector("#f-agent_5fid").value = %q`, agent))
	b.Click("form.start button.primary")
	b.Until(`document.querySelector("#transcript")?.innerText.includes("Turn 1 completed")`)
	for range 2 { // as it streamed, and as a page
		if n := b.Text(`String(document.querySelectorAll("main img, main script, main hx-partial, main template, [onerror], main a[href^='javascript:']").length)`); n != "0" {
			t.Errorf("%s elements came out of text", n)
		}
		if title := b.Text("document.title"); strings.Contains(title, "owned") && !strings.Contains(title, "<img") {
			t.Errorf("a script ran: %q", title)
		}
		b.Open(s.url + b.Text("location.pathname"))
	}
	for _, line := range b.Complaints() {
		t.Error(line)
	}
}

// However many pages one opens, a browser holds one stream a tab: connections are few.
func pagesGiveTheirStreamsBack(t *testing.T, s *site) {
	b := browsertest.New(t)
	signIn(b, s)
	for range 8 {
		for _, path := range []string{"/", "/workspaces", "/conversations"} {
			b.Open(s.url + path)
			b.Until(`document.querySelector("#stream")._htmx?.sse`)
		}
	}
	if said := b.Complaints(); len(said) > 0 {
		t.Error(said) // the thirteenth at once would be refused
	}
}
