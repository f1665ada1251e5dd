package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"managoat/internal/client"
	"managoat/internal/conversation"
)

// event is a row of a conversation's stream.
type event struct {
	Seq        int64           `json:"seq"`
	Type       string          `json:"type"`
	TurnNumber int             `json:"turn_number"`
	Body       json.RawMessage `json:"body"`
}

type turnView struct {
	ID         string     `json:"id"`
	TurnNumber int        `json:"turn_number"`
	Status     string     `json:"status"`
	StartedAt  *time.Time `json:"started_at"`
	StopReason string     `json:"stop_reason"`
	Reason     string     `json:"reason"`
	Error      *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	WaitingFor *struct {
		Reason string `json:"reason"`
		Detail string `json:"detail"`
	} `json:"waiting_for"`
}

// waits says what can hold a turn for long; "" when nothing does.
func (v turnView) waits() string {
	if v.WaitingFor == nil {
		return ""
	}
	switch w := v.WaitingFor; {
	case w.Reason == "setup":
		return "waits for the machine's setup"
	case w.Reason == "host":
		return "waits for the server whose host runs the machine: it is away"
	case w.Reason == "queue" && w.Detail != "":
		return "waits behind turn " + w.Detail
	}
	return ""
}

func runVerb() *cobra.Command {
	var workspace, environment, prompt, cwd, title, conversation string
	var asJSON bool
	cmd := sub("run AGENT -p PROMPT", "Give an agent one prompt, stream the turn, exit by its outcome", cobra.ExactArgs(1), func(c *cobra.Command, cl *client.Client, args []string) error {
		if prompt == "-" {
			b, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
			if err != nil {
				return err
			}
			prompt = string(b)
		}
		if strings.TrimSpace(prompt) == "" {
			return &codedError{exitUsage, errors.New("-p is needed: the prompt, or - to read it from standard input")}
		}
		number := 1
		if conversation == "" {
			id, err := launch(c, cl, args[0], workspace, environment, cwd, title, prompt)
			if err != nil {
				return err
			}
			conversation = id
			fmt.Fprintln(os.Stderr, "conversation", id)
		} else {
			var out struct{ Data turnView }
			if err := cl.Do(c.Context(), "POST", "/api/conversations/"+conversation+"/prompts", map[string]any{"prompt": prompt}, &out); err != nil {
				return err
			}
			number = out.Data.TurnNumber
		}
		return followTurn(c.Context(), cl, conversation, number, asJSON)
	})
	cmd.Use = "run AGENT -p PROMPT [--workspace W]"
	cmd.GroupID = "use"
	cmd.SuggestFor = []string{"conversation", "conversations", "prompt"}
	f := cmd.Flags()
	f.StringVarP(&prompt, "prompt", "p", "", "the prompt; - reads standard input")
	f.StringVar(&workspace, "workspace", "", "the workspace's name or id (default: a machine of its own)")
	f.StringVar(&environment, "environment", "", "the environment of a machine of its own (default: the agent's)")
	f.StringVar(&cwd, "cwd", "", "working directory in the machine")
	f.StringVar(&title, "title", "", "the conversation's title")
	f.StringVar(&conversation, "conversation", "", "go on in this conversation instead of starting one")
	f.BoolVar(&asJSON, "json", false, "print every event as a line of JSON")
	return cmd
}

func launch(c *cobra.Command, cl *client.Client, agent, workspace, environment, cwd, title, prompt string) (string, error) {
	in := map[string]any{"prompt": prompt}
	var err error
	if in["agent_id"], err = find(c, cl, "/api/agents", "agent", agent); err != nil {
		return "", err
	}
	if workspace != "" {
		if in["workspace_id"], err = find(c, cl, "/api/workspaces", "workspace", workspace); err != nil {
			return "", err
		}
	}
	if environment != "" {
		if in["environment_id"], err = find(c, cl, "/api/environments", "environment", environment); err != nil {
			return "", err
		}
	}
	for k, v := range map[string]string{"cwd": cwd, "title": title} {
		if v != "" {
			in[k] = v
		}
	}
	var out struct{ Data struct{ ID string } }
	err = cl.Do(c.Context(), "POST", "/api/conversations", in, &out)
	return out.Data.ID, err
}

// lookEvery is the pause between two looks at a turn that waits: one that is taken back before it begins leaves no row.
const lookEvery = 2 * time.Second

// errEnded ends the following of a turn that ended without a row.
var errEnded = errors.New("the turn ended before it began")

// followTurn prints a turn as it happens. Interrupting the command (Ctrl-C) interrupts the turn and shows its end; a
// second time leaves it.
func followTurn(ctx context.Context, cl *client.Client, id string, number int, asJSON bool) error {
	t := &turnPrinter{printer: stdout(), json: asJSON}
	base := "/api/conversations/" + id
	read := func(ctx context.Context) (turnView, error) {
		var out struct{ Data turnView }
		err := cl.Get(ctx, fmt.Sprintf("%s/turns/%d", base, number), &out)
		return out.Data, err
	}
	var final turnView
	begun := number == 1
	each := func(f client.Frame) error {
		var e event
		if f.Event != client.Opened {
			if err := json.Unmarshal(f.Data, &e); err != nil {
				return fmt.Errorf("the server sent an event that cannot be read: %w", err)
			}
			if begun = begun || e.TurnNumber == number; e.TurnNumber != number && (e.TurnNumber != 0 || !begun) {
				return nil // another turn's, or the setup of a machine that was there before this one
			}
			if asJSON {
				fmt.Fprintf(os.Stdout, "%s\n", f.Data)
			} else {
				t.show(e)
			}
		}
		// Whether the turn is over is the turn's own word, asked when a row says that something changed.
		if f.Event != client.Opened && e.Type != "prompt" && !endsTurn(e) {
			return nil
		}
		now, err := read(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		if now.ended() && f.Event != client.Opened {
			final = now
			return client.ErrStop
		}
		if w := now.waits(); w != "" && w != t.waits && !asJSON {
			t.waits = w
			t.line("◌ " + w)
		}
		return nil
	}
	// follow follows until the turn has ended, with a row or without.
	follow := func(ctx context.Context, after string) error {
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		go func() {
			for tick := time.Tick(lookEvery); ; {
				select {
				case <-ctx.Done():
					return
				case <-tick:
				}
				if now, err := read(ctx); err == nil && now.StartedAt != nil {
					return // its end has a row
				} else if err == nil && now.Reason == withdrawn {
					stop(errEnded)
				}
			}
		}()
		err := cl.Follow(ctx, base+"/stream", after, each)
		if errors.Is(context.Cause(ctx), errEnded) {
			final, err = read(context.WithoutCancel(ctx))
		}
		return err
	}
	err := follow(ctx, "")
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "\ninterrupting the turn …")
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		now, err := read(rest)
		if err != nil {
			return err
		}
		if !now.ended() { // by its id: another one may run, which is not ours to interrupt
			if err := cl.Do(rest, "POST", base+"/interrupt", map[string]any{"turn_id": now.ID}, nil); err != nil {
				return err
			}
		}
		if err := follow(rest, t.last); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	t.endLine()
	return final.outcome()
}

// withdrawn is the reason of a turn that was taken back before it began.
const withdrawn = "withdrawn"

func (v turnView) ended() bool { return v.Status != "pending" && v.Status != "running" }

// outcome is how a turn ended, as the command's.
func (v turnView) outcome() error {
	switch {
	case v.Status == "completed":
		return nil
	case v.Status == "":
		return &codedError{exitRefused, errors.New("the conversation ended before the turn did")}
	case v.Reason == withdrawn:
		return &codedError{exitRefused, errors.New("the prompt was taken back before its turn began")}
	}
	msg := "the turn " + v.Status
	if v.Status == "interrupted" {
		msg = "the turn was interrupted"
	}
	if v.Error != nil {
		msg += ": " + v.Error.Message + " (" + v.Error.Code + ")"
	} else if v.Reason != "" {
		msg += ": " + words(v.Reason)
	}
	return &codedError{exitRefused, errors.New(msg)}
}

// words are a code as people read it, with the code itself for those who look it up. What is no code is text already.
func words(code string) string {
	if m := conversation.Meaning(code); m != "" {
		return m + " (" + code + ")"
	}
	return code
}

func endsTurn(e event) bool {
	if e.Type != "stage" {
		return false
	}
	var b struct{ Stage, State string }
	return json.Unmarshal(e.Body, &b) == nil && b.Stage == "turn" && b.State != "started"
}

// turnPrinter writes rows for people: messages as they come, one line for everything else.
type turnPrinter struct {
	printer
	json   bool
	inText bool
	last   string
	waits  string // as it was last shown
	titles map[string]string
	// requests that wait for their answer: a request is shown with it.
	requests []request
}

type request struct{ id, title string }

func (t *turnPrinter) endLine() {
	if t.inText {
		t.text("\n")
		t.inText = false
	}
}

func (t *turnPrinter) line(s string) {
	t.endLine()
	t.text(s + "\n")
}

func (t *turnPrinter) show(e event) {
	t.last = fmt.Sprint(e.Seq)
	var b struct {
		ID, Text, Title, Stage, State, Reason, Advice, Code, Message, Status, Signal, Outcome string
		RequestID                                                                             string `json:"request_id"`
		ExitCode                                                                              *int   `json:"exit_code"`
		DurationMS                                                                            int64  `json:"duration_ms"`
		Detail                                                                                struct {
			Lines   []string
			Dropped int
		}
	}
	if json.Unmarshal(e.Body, &b) != nil {
		return
	}
	switch e.Type {
	case "message":
		t.text(b.Text)
		t.inText = true
	case "tool_call":
		if t.titles == nil {
			t.titles = map[string]string{}
		}
		if b.Title != "" {
			t.titles[b.ID] = b.Title
		}
	case "tool_result":
		mark := "✓"
		if b.Status != "completed" {
			mark = "✕"
		}
		s := mark + " " + t.titles[b.ID]
		if b.ExitCode != nil {
			s += fmt.Sprintf("  exit %d", *b.ExitCode)
		}
		if b.Signal != "" {
			s += "  " + b.Signal
		}
		t.line(s + "  " + duration(b.DurationMS))
	case "stage":
		if b.Stage == "turn" {
			return
		}
		if lines := b.Detail.Lines; len(lines) > 0 { // what a step of the machine's setup printed
			t.endLine()
			for _, line := range lines {
				t.text(line)
				t.inText = !strings.HasSuffix(line, "\n")
			}
			return
		}
		mark := map[string]string{"started": "◐", "done": "✓", "failed": "✕", "interrupted": "–"}[b.State]
		s := mark + " " + b.Stage
		if b.Advice != "" {
			s += ": " + b.Advice + " (" + b.Reason + ")"
		} else if b.Reason != "" {
			s += ": " + words(b.Reason)
		}
		t.line(s)
	case "notice":
		t.line("· " + b.Text)
	case "error":
		t.line("✕ " + b.Message + " (" + b.Code + ")")
	case "permission_request":
		t.requests = append(t.requests, request{b.RequestID, b.Title})
	case "permission_resolved":
		for i, r := range t.requests {
			if r.id == b.RequestID {
				t.requests = append(t.requests[:i], t.requests[i+1:]...)
				t.line("· " + r.title + ": " + cmp.Or(conversation.Meaning(b.Outcome), b.Outcome))
				break
			}
		}
	}
}
