package main

import (
	"fmt"
	"strings"
	"time"

	"managoat/views"
	"managoat/views/markup"
)

// script writes rows with rising numbers and times.
type script struct {
	rows []views.TranscriptRow
	seq  int64
	turn int
	at   time.Time
}

func (s *script) add(after time.Duration, body views.RowBody) {
	s.seq++
	s.at = s.at.Add(after)
	s.rows = append(s.rows, views.TranscriptRow{Seq: s.seq, Turn: s.turn, At: s.at, Body: body})
}

func (s *script) say(id, text string) {
	words := strings.SplitAfter(text, " ")
	for len(words) > 0 {
		n := min(3, len(words))
		s.add(20*time.Millisecond, views.MessageBody{ID: id, Text: strings.Join(words[:n], "")})
		words = words[n:]
	}
}

func exit(code int) *int { return &code }

var byMachine = views.ToolSource{Output: "machine", ExitCode: "machine", Duration: "machine"}

// storyRows is a turn with a row of every type, still running.
func storyRows(start time.Time) []views.TranscriptRow {
	s := &script{at: start, turn: 3, seq: 40}
	s.add(0, views.PromptBody{Text: "The total is wrong when a coupon is applied twice. There is a failing test. Find the cause and fix it.", By: "You"})
	s.add(5*time.Millisecond, views.StageBody{Stage: "turn", State: "started"})
	s.add(5*time.Millisecond, views.StageBody{Stage: "wake", State: "started"})
	s.add(900*time.Millisecond, views.StageBody{Stage: "wake", State: "done", Duration: 900 * time.Millisecond, Detail: "parked for 2 h"})
	s.add(10*time.Millisecond, views.StageBody{Stage: "adapter", State: "started", Detail: "claude-agent-acp 0.42.0"})
	s.add(1100*time.Millisecond, views.StageBody{Stage: "adapter", State: "done", Duration: 1100 * time.Millisecond, Detail: "claude-agent-acp 0.42.0"})
	s.add(300*time.Millisecond, views.ThoughtBody{ID: "t1", Text: "The failing test names a coupon that is applied twice. "})
	s.add(2800*time.Millisecond, views.ThoughtBody{ID: "t1", Text: "I should read the cart first, then run the test to see the real numbers."})
	s.say("m1", "I'll look at how the total is computed, then run the failing test.\n\n1. read `cart/total.go`\n2. run the test\n\n")
	s.add(100*time.Millisecond, views.PlanBody{Entries: []views.PlanEntry{{Text: "Read the cart", State: views.StateRunning}, {Text: "Reproduce the failure", State: views.StateOff}, {Text: "Fix and verify", State: views.StateOff}}})
	s.add(10*time.Millisecond, views.ToolCallBody{ID: "r1", Title: "Read cart/total.go", Kind: "read", Input: []views.InputField{{Name: "file_path", Value: "/home/sprite/storefront/cart/total.go"}}, Locations: []string{"cart/total.go:1"}})
	s.add(12*time.Millisecond, views.ToolResultBody{ID: "r1", Status: "completed", Duration: 12 * time.Millisecond, Output: goSource, OutputBytes: int64(len(goSource)), Source: views.ToolSource{Output: "protocol", Duration: "protocol"}})
	s.add(100*time.Millisecond, views.ToolCallBody{ID: "x1", Title: "`go test ./cart`", Kind: "execute", Input: []views.InputField{{Name: "command", Value: "go test ./cart"}, {Name: "description", Value: "Run the cart's tests"}}})
	s.add(900*time.Millisecond, views.ToolOutputBody{ID: "x1", Stream: "stdout", Text: "--- FAIL: TestTotalCouponTwice (0.00s)\n"})
	s.add(900*time.Millisecond, views.ToolOutputBody{ID: "x1", Stream: "stdout", Text: "\x1b[31m    total_test.go:41: got 1890, want 2100\x1b[0m\nFAIL\tstorefront/cart\t0.213s\n"})
	s.add(600*time.Millisecond, views.ToolResultBody{ID: "x1", Status: "failed", ExitCode: exit(1), Duration: 3400 * time.Millisecond, Output: "--- FAIL: TestTotalCouponTwice (0.00s)\n\x1b[31m    total_test.go:41: got 1890, want 2100\x1b[0m\nFAIL\tstorefront/cart\t0.213s\n" + manyLines(209), OutputBytes: 120314, Truncated: true, FullLogPath: "~/.managoat/logs/c1/t3-x1.log", FullLogURL: "/workspaces/w1/file", Source: byMachine})
	s.add(10*time.Millisecond, views.PlanBody{Entries: []views.PlanEntry{{Text: "Read the cart", State: views.StateDone}, {Text: "Reproduce the failure", State: views.StateDone}, {Text: "Fix and verify", State: views.StateRunning}}})
	s.say("m2", "The coupon is subtracted **once per line** instead of once per cart:\n\n```go\nfor _, l := range c.Lines {\n\tsum += l.Price*l.Qty - c.Coupon // every line pays it\n}\n```\n\nI will apply it after the sum, and never below zero. See [the ticket](https://tracker.example.com/4711) for the rule.")
	edit := markup.Changes("cart/total.go", goSource, goFixed)
	s.add(100*time.Millisecond, views.ToolCallBody{ID: "e1", Title: "Edit cart/total.go", Kind: "edit", Input: []views.InputField{{Name: "file_path", Value: "/home/sprite/storefront/cart/total.go"}, {Name: "old_string", Value: "x"}, {Name: "new_string", Value: "y"}}, Diffs: []markup.FileDiff{edit}})
	s.add(8*time.Millisecond, views.ToolResultBody{ID: "e1", Status: "completed", Duration: 8 * time.Millisecond, Source: views.ToolSource{Output: "protocol", Duration: "protocol"}})
	s.add(10*time.Millisecond, views.ToolCallBody{ID: "x2", Title: "`go test ./cart`", Kind: "execute", Input: []views.InputField{{Name: "command", Value: "go test ./cart"}}})
	s.add(3100*time.Millisecond, views.ToolResultBody{ID: "x2", Status: "completed", ExitCode: exit(0), Duration: 3100 * time.Millisecond, Output: "ok  \tstorefront/cart\t0.201s\n", OutputBytes: 30, Source: byMachine})
	s.add(10*time.Millisecond, views.UsageBody{Model: "claude-sonnet-4-5", Source: "own", Attempt: 1, Input: 14102, Output: 811, CacheRead: 9000})
	s.add(10*time.Millisecond, views.UsageBody{Model: "claude-sonnet-4-5", Source: "own", Attempt: 1, Input: 4102, Output: 311})
	s.say("m3", "Fixed. The coupon now counts once per cart; all tests of `./cart` pass.")
	s.add(50*time.Millisecond, views.StageBody{Stage: "turn", State: "done", Duration: 13 * time.Second})
	s.turn = 4
	s.add(4*time.Minute, views.PromptBody{Text: "Good. Now remove the build output and run everything.", By: "You", Images: 1})
	s.add(5*time.Millisecond, views.StageBody{Stage: "turn", State: "started"})
	s.add(time.Second, views.NoticeBody{Text: "New machine since 14:05: the disk is new, the agent's memory is new"})
	s.add(10*time.Millisecond, views.PermissionRequestBody{ID: "p1", Title: "Run a command", Detail: "rm -rf dist", Options: []views.PermissionOption{{ID: "once", Name: "Allow once", Kind: "allow_once"}, {ID: "always", Name: "Always in this conversation", Kind: "allow_always"}, {ID: "no", Name: "Deny", Kind: "reject_once"}}, Deadline: s.at.Add(5 * time.Minute), Action: "/conversations/c1/requests/p1"})
	s.add(18*time.Second, views.PermissionResolvedBody{ID: "p1", OptionID: "once", By: "you"})
	s.add(10*time.Millisecond, views.ToolCallBody{ID: "x3", Title: "`rm -rf dist`", Kind: "execute", Input: []views.InputField{{Name: "command", Value: "rm -rf dist"}}})
	s.add(9*time.Millisecond, views.ToolResultBody{ID: "x3", Status: "completed", ExitCode: exit(0), Duration: 9 * time.Millisecond, Source: byMachine})
	s.say("m4", "Removed. Now everything:")
	s.add(10*time.Millisecond, views.ToolCallBody{ID: "x4", Title: "`go test ./...`", Kind: "execute", Input: []views.InputField{{Name: "command", Value: "go test ./... 2>&1 | tee /tmp/all.log"}}})
	s.add(2*time.Second, views.ToolOutputBody{ID: "x4", Stream: "stdout", Text: "ok  \tstorefront/cart\t0.201s\nok  \tstorefront/checkout\t1.812s\n"})
	s.add(time.Second, views.PermissionRequestBody{ID: "p2", Title: "Run a command", Detail: "git push --force origin fix-coupon", Options: []views.PermissionOption{{ID: "once", Name: "Allow once", Kind: "allow_once"}, {ID: "always", Name: "Always in this conversation", Kind: "allow_always"}, {ID: "no", Name: "Deny", Kind: "reject_once"}}, Deadline: s.at.Add(5 * time.Minute), Action: "/conversations/c1/requests/p2"})
	return s.rows
}

// failingRows are the ways a conversation goes wrong.
func failingRows(start time.Time) []views.TranscriptRow {
	s := &script{at: start, turn: 1}
	s.add(0, views.PromptBody{Text: "Review the cart.", By: "key deploy"})
	s.add(10*time.Millisecond, views.StageBody{Stage: "packages", State: "started", Output: "Get:1 https://deb.example.com ripgrep\n"})
	s.add(2*time.Second, views.StageBody{Stage: "packages", State: "started", Output: "Setting up ripgrep (13.0.0-4) ...\n"})
	s.add(2*time.Second, views.StageBody{Stage: "packages", State: "done", Detail: "apt 1", Duration: 4 * time.Second})
	s.add(10*time.Millisecond, views.StageBody{Stage: "home", State: "done", Duration: 12 * time.Millisecond})
	s.add(10*time.Millisecond, views.StageBody{Stage: "adapter", State: "started"})
	s.add(2*time.Second, views.StageBody{Stage: "adapter", State: "failed", Code: "adapter_crashed", Advice: "The runtime ended before it answered, twice. Check that the machine has node 22.", Duration: 2 * time.Second})
	s.add(10*time.Millisecond, views.ErrorBody{Code: "adapter_crashed", Message: "The runtime crashed before it read the prompt, and once more after a relaunch.", Facts: []views.InputField{{Name: "exit code", Value: "1"}}, Output: "node:internal/modules/cjs/loader:1228\n\x1b[31mError: Cannot find module 'zod'\x1b[0m\n"})
	s.add(10*time.Millisecond, views.StageBody{Stage: "turn", State: "failed", Code: "adapter_crashed", Duration: 4 * time.Second})
	s.turn = 2
	s.add(time.Minute, views.PromptBody{Text: "Try again", By: "You"})
	s.add(time.Second, views.ToolCallBody{ID: "k1", Title: "make bench", Kind: "execute", Input: []views.InputField{{Name: "command", Value: "make bench"}}})
	s.add(time.Second, views.ToolResultBody{ID: "k1", Status: "failed", Signal: "KILL", Duration: 92 * time.Second, Output: "Killed\n", OutputBytes: 7, Source: byMachine})
	s.add(time.Second, views.ToolCallBody{ID: "k2", Title: "curl evil", Kind: "execute", Input: []views.InputField{{Name: "command", Value: "curl https://proxy.internal"}}})
	s.add(time.Second, views.ToolResultBody{ID: "k2", Status: "completed", Duration: time.Second, Output: "", Source: views.ToolSource{Output: "protocol", Duration: "protocol"}})
	s.add(time.Second, views.PermissionRequestBody{ID: "p", Title: "Run a command", Detail: "sudo reboot"})
	s.add(time.Second, views.PermissionResolvedBody{ID: "p", By: "timeout after 5 min"})
	s.add(time.Second, views.StageBody{Stage: "turn", State: "interrupted", Reason: "The machine parked, at the end of its lifetime.", Code: "machine_parked", Duration: 97 * time.Second})
	s.turn = 3
	s.add(time.Minute, views.PromptBody{Text: "Run the whole suite", By: "You"})
	s.say("m3", "It runs now.")
	gone := views.StageBody{Stage: "turn", State: "interrupted", Reason: "The machine is gone with its disk: it was rebuilt, or lost.", Code: "machine_destroyed"}
	s.turn = 4 // it waited behind that one, and ends before it
	s.add(0, views.PromptBody{Text: "Then push it", By: "You"})
	s.add(0, gone)
	s.turn, gone.Duration = 3, 9*time.Second
	s.add(time.Second, gone)
	return s.rows
}

// heavyRows are many, and long.
func heavyRows(start time.Time) []views.TranscriptRow {
	s, output := &script{at: start}, manyLines(10000)
	for i := range 60 {
		s.turn = i + 1
		s.add(time.Second, views.PromptBody{Text: fmt.Sprintf("Step %d. %s", i, strings.Repeat("pneumonoultramicroscopicsilicovolcanoconiosis", 6)), By: "You"})
		s.say(fmt.Sprint("m", i), "Doing **it**: `"+strings.Repeat("x", 300)+"`\n\n| a | b |\n|---|---|\n| 1 | "+strings.Repeat("wide ", 40)+"|\n")
		for j := range 4 {
			id := fmt.Sprintf("t%d.%d", i, j)
			s.add(time.Millisecond, views.ToolCallBody{ID: id, Title: long, Kind: "search", Input: []views.InputField{{Name: "pattern", Value: long}}})
			s.add(time.Millisecond, views.ToolResultBody{ID: id, Status: "completed", Duration: time.Millisecond, Output: output, OutputBytes: 300000, Source: byMachine})
		}
		s.add(time.Second, views.StageBody{Stage: "turn", State: "done", Duration: time.Second})
	}
	return s.rows
}

func conversation(now time.Time) views.ConversationPage {
	t := views.NewTranscript("Builder", "/conversations/c1/diagnostics")
	t.Now = now
	rows := storyRows(now.Add(-5 * time.Minute))
	t.Append(rows)
	p := views.ConversationPage{
		Page: page(now, "Fix the cart total", "conversations"), URL: "/conversations/c1",
		Head:  views.TurnState{Name: "Fix the cart total when a coupon is applied twice", State: views.Badge{State: views.StateRunning, Label: "turn 4", Since: now.Add(-42 * time.Second)}, InterruptURL: "/conversations/c1/interrupt", Turn: 4},
		Agent: views.Link{Name: "Builder", URL: "/agents/a1"}, Runtime: "claude", Workspace: views.Link{Name: "storefront", URL: "/workspaces/w1"}, Cwd: "~/storefront",
		EarlierURL: "/conversations/c1?before=41", Transcript: t,
		Composer: views.Composer{Action: "/conversations/c1/prompts", Placeholder: "Message", Busy: true},
		Queue:    []views.Queued{{Turn: 5, Behind: 4, Text: "Then add the case to the test of the checkout, with two coupons.", WithdrawURL: "/conversations/c1/interrupt"}},
		Facts: views.Facts{Turn: 4, Items: []views.Fact{{Name: "Model", Value: views.Link{Name: "claude-sonnet-4-5"}}, {Name: "Paid by", Value: views.Link{Name: "own key"}}, {Name: "Tokens", Value: views.Link{Name: "18,204 in · 1,122 out"}}, {Name: "Attempt", Value: views.Link{Name: "1"}}, {Name: "First token", Value: views.Link{Name: "0.4 s"}}},
			Files:  []views.FileChange{{File: views.Link{Name: "cart/total.go", URL: "/workspaces/w1/diff"}, Added: 3, Deleted: 1}},
			Egress: []views.Fact{{Name: "model gateway", Value: views.Link{Name: "6 allowed"}}, {Name: "proxy.internal", Value: views.Link{Name: "1 denied"}, Bad: true}},
			Links:  []views.Link{{Name: "Download patch", URL: "/workspaces/w1/patch"}}},
		Manage: views.Manage{RenameURL: "/conversations/c1/rename", TerminateURL: "/conversations/c1/terminate", DeleteURL: "/conversations/c1/delete"},
	}
	return p
}

const goSource = `package cart

// Total is what the cart costs, in cents.
func Total(c Cart) int {
	sum := 0
	for _, l := range c.Lines {
		sum += l.Price*l.Qty - c.Coupon
	}
	return sum
}
`

const goFixed = `package cart

// Total is what the cart costs, in cents.
func Total(c Cart) int {
	sum := 0
	for _, l := range c.Lines {
		sum += l.Price * l.Qty
	}
	return max(0, sum-c.Coupon)
}
`

const patch = `diff --git a/cart/total.go b/cart/total.go
index 3f9c2d1..8a7b6c5 100644
--- a/cart/total.go
+++ b/cart/total.go
@@ -4,7 +4,7 @@ func Total(c Cart) int {
 	sum := 0
 	for _, l := range c.Lines {
-		sum += l.Price*l.Qty - c.Coupon
+		sum += l.Price * l.Qty
 	}
-	return sum
+	return max(0, sum-c.Coupon)
 }
\ No newline at end of file
diff --git a/cart/discount.go b/cart/coupon.go
similarity index 100%
rename from cart/discount.go
rename to cart/coupon.go
diff --git a/logo.png b/logo.png
new file mode 100644
index 0000000..3f9c2d1
Binary files /dev/null and b/logo.png differ
diff --git a/notes.md b/notes.md
new file mode 100644
--- /dev/null
+++ b/notes.md
@@ -0,0 +1,2 @@
+# Notes
+<script>alert(1)</script>
`
