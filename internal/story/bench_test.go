package story

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"managoat/internal/acp"
	"managoat/internal/client"
	"managoat/internal/runtime"
	"managoat/internal/testworld"
)

// Sizes of the benchmarks of the whole product.
const (
	benchPairs   = 4  // of agents: two processes of one adapter differ by up to 15 ms, each for as long as it lives
	benchPrompts = 50 // to each agent; the first few warm up and do not count
	benchWarm    = 10
	benchRest    = 50 * time.Millisecond // before a prompt: what an adapter does after a turn is not to fall into another's
	benchStarts  = 5
	benchStart   = 2 * time.Second // a start that takes longer is told of
)

// hops of a prompt: from its first byte to the model's being asked, and from there to the first words.
type hops struct{ there, back []time.Duration }

func (h *hops) add(began, asked, said time.Time) {
	h.there, h.back = append(h.there, asked.Sub(began)), append(h.back, said.Sub(asked))
}

// total is the median of whole ways.
func (h *hops) total() time.Duration {
	whole := make([]time.Duration, len(h.there))
	for i := range whole {
		whole[i] = h.there[i] + h.back[i]
	}
	return median(whole)
}

func median(times []time.Duration) time.Duration {
	times = slices.Clone(times)
	slices.Sort(times)
	return times[len(times)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkPrompt compares the time from a prompt to the agent's first words: through the product, from the request's
// first byte to the row on an event stream; and with the same adapter driven by hand over its pipes. Both ask the same
// model and take turns; their sessions stand already and grow alike. The model stays in the middle of its answer until
// the words have come, so that no turn's end pushes them.
func BenchmarkPrompt(b *testing.B) {
	s, world := own(b, "MANAGOAT_PROMPTS_PER_MINUTE=1000")
	a := s.account(b)
	a.credential(world)
	agent, w := a.claude(nil), a.ready(a.workspace(a.environment(nil)).ID)
	n := 0
	// prompt has a side ask something, and tells when the model was asked.
	prompt := func(side string, ask func(text string, goOn func()) (began, said time.Time)) (began, asked, said time.Time) {
		n++
		marker := fmt.Sprintf("answer %s for the %04d. time", side, n)
		gate := testworld.NewGate()
		defer gate.Open()
		world.Model.Script(marker, testworld.Reply{testworld.Say("These are the first words. "), testworld.Wait(gate), testworld.Say("These are the last.")})
		time.Sleep(benchRest)
		began, said = ask("Please "+marker, gate.Open)
		calls := world.Model.Calls()
		i := slices.IndexFunc(calls, func(c testworld.ModelCall) bool { return c.Marker == marker })
		return began, calls[i].At, said
	}
	for b.Loop() {
		var through, direct hops
		for range benchPairs {
			id := a.launch(agent, body{"workspace_id": w.ID}).ID
			rows := a.rowsOf(id)
			hand := byHand(b, world, a.ModelKey, machine(*w.SandboxID))
			turn := 0
			ours := func(text string, goOn func()) (began, said time.Time) {
				turn++
				began = time.Now()
				a.prompt(id, text)
				rows.next(b, func(e Event) bool { return e.Type == "message" && e.TurnNumber == turn })
				said = time.Now()
				goOn()
				rows.next(b, func(e Event) bool { return e.Type == "stage" && e.Body.Stage == "turn" && e.TurnNumber == turn })
				return began, said
			}
			theirs := func(text string, goOn func()) (began, said time.Time) { return hand.prompt(b, text, goOn) }
			for i := range benchPrompts {
				x, y, z := prompt("the product", ours)
				p, q, r := prompt("the hand", theirs)
				if i >= benchWarm {
					through.add(x, y, z)
					direct.add(p, q, r)
				}
			}
			a.do("POST", "/api/conversations/"+id+"/terminate", nil)
			hand.stop()
		}
		t, d := through.total(), direct.total()
		b.ReportMetric(milliseconds(t-d), "ms-more")
		b.ReportMetric(milliseconds(median(through.there)-median(direct.there)), "ms-more-to-model")
		b.ReportMetric(milliseconds(median(through.back)-median(direct.back)), "ms-more-from-model")
		b.ReportMetric(milliseconds(d), "ms-by-hand")
		b.ReportMetric(float64(t)/float64(d), "x-by-hand")
	}
}

// follower reads a conversation's rows as they come.
type follower chan Event

// rowsOf follows a conversation until the test ends. It returns when the stream stands.
func (a *Account) rowsOf(id string) follower {
	a.tb.Helper()
	ctx, stop := context.WithCancel(context.Background())
	rows, opened := make(follower, 1000), make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- a.Follow(ctx, "/api/conversations/"+id+"/stream", "", func(f client.Frame) error {
			if f.Event == client.Opened {
				select {
				case opened <- struct{}{}:
				default: // it was opened before, by a server that has ended
				}
				return nil
			}
			var e Event
			if err := json.Unmarshal(f.Data, &e); err != nil {
				return err
			}
			select {
			case rows <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	a.tb.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			a.tb.Error(err)
		}
	})
	select {
	case <-opened:
	case <-time.After(patience):
		a.tb.Fatal("the stream did not open")
	}
	return rows
}

// next waits for a row.
func (f follower) next(tb testing.TB, wanted func(Event) bool) {
	tb.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case e := <-f:
			if e.Type == "error" {
				tb.Fatalf("an error in the transcript: %s", e.raw)
			}
			if wanted(e) {
				return
			}
		case <-deadline.C:
			tb.Fatalf("waited %s for a row", patience)
		}
	}
}

// handDriven is an adapter that nobody but its pipes stands between.
type handDriven struct {
	peer    *acp.Peer
	session string
	chunks  chan time.Time // when the agent said something
	booted  time.Duration  // from its start to its first answer
	stop    func()
}

// byHand starts the adapter that the product starts, as a process of the test, and opens its session. It gets its CPU time
// out of the machine's share: on a busy host the two would be of different speeds else.
func byHand(b *testing.B, world *testworld.World, key, machine string) *handDriven {
	b.Helper()
	claude, _ := runtime.Get(runtime.Claude)
	home, dir := b.TempDir(), b.TempDir()
	argv := claude.Argv(runtime.Launch{})
	for i, arg := range argv {
		argv[i] = strings.Replace(arg, runtime.MountPoint, common.runtimes, 1)
	}
	argv = []string{argv[0], argv[len(argv)-1]} // as anybody would start it
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + filepath.Dir(argv[0]) + ":" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + b.TempDir(), "CLAUDE_CONFIG_DIR=" + filepath.Join(home, "config"),
		"ANTHROPIC_BASE_URL=" + world.Model.LoopbackURL, "ANTHROPIC_API_KEY=" + key, "ANTHROPIC_MODEL=claude-test-1"}
	for name, value := range claude.Defaults(runtime.Launch{}) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	for _, dir := range groups(machine) {
		if limits, _ := filepath.Glob(filepath.Join(dir, "cpu.*")); len(limits) > 0 {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	h := &handDriven{chunks: make(chan time.Time, 1000)}
	h.peer = acp.NewPeer(0, func(_ context.Context, line []byte) error { _, err := stdin.Write(line); return err })
	var reading sync.WaitGroup
	reading.Go(func() {
		defer h.peer.Close(nil)
		lines := bufio.NewReader(stdout)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			at := time.Now()
			m, err := acp.Parse(line)
			switch {
			case err != nil:
			case m.Response():
				h.peer.Deliver(m)
			case bytes.Contains(m.Params, []byte(`"agent_message_chunk"`)):
				h.chunks <- at
			}
		}
	})
	h.stop = sync.OnceFunc(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the adapter's children outlive it
		reading.Wait()
		cmd.Wait()
		if b.Failed() {
			b.Logf("the adapter's standard error:\n%s", stderr.Bytes())
		}
	})
	b.Cleanup(h.stop)
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	if err := h.peer.Call(ctx, sdk.AgentMethodInitialize, sdk.InitializeRequest{ProtocolVersion: sdk.ProtocolVersionNumber, ClientCapabilities: claude.Capabilities()}, nil); err != nil {
		b.Fatal(err)
	}
	h.booted = time.Since(began)
	if err := h.peer.Call(ctx, sdk.AgentMethodAuthenticate, sdk.AuthenticateRequest{MethodId: claude.AuthMethod()}, nil); err != nil {
		b.Fatal(err)
	}
	var opened struct{ SessionID string }
	if err := h.peer.Call(ctx, sdk.AgentMethodSessionNew, sdk.NewSessionRequest{Cwd: dir, McpServers: []sdk.McpServer{}}, &opened); err != nil {
		b.Fatal(err)
	}
	h.session = opened.SessionID
	if err := h.peer.Call(ctx, sdk.AgentMethodSessionSetMode, sdk.SetSessionModeRequest{SessionId: sdk.SessionId(h.session), ModeId: sdk.SessionModeId(claude.Mode())}, nil); err != nil {
		b.Fatal(err)
	}
	return h
}

// prompt is one turn.
func (h *handDriven) prompt(b *testing.B, text string, goOn func()) (began, said time.Time) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	for len(h.chunks) > 0 {
		<-h.chunks
	}
	ended := make(chan error, 1)
	began = time.Now()
	go func() {
		ended <- h.peer.Call(ctx, sdk.AgentMethodSessionPrompt, sdk.PromptRequest{SessionId: sdk.SessionId(h.session), Prompt: []sdk.ContentBlock{sdk.TextBlock(text)}}, nil)
	}()
	select {
	case said = <-h.chunks:
	case err := <-ended:
		b.Fatalf("the turn ended before the agent said anything: %v", err)
	}
	goOn()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	return began, said
}

// BenchmarkWake is the time from a prompt into a parked machine to the first answer of the adapter in it, against that of
// the same adapter started by hand, by turns.
func BenchmarkWake(b *testing.B) {
	s, world := own(b)
	a := s.account(b)
	a.credential(world)
	world.Model.Script("be there", testworld.Reply{testworld.Say("I am.")})
	env, agent := a.environment(nil), a.claude(nil)
	launch := func() (Workspace, string) {
		w := a.ready(a.workspace(env).ID)
		id := a.launch(agent, body{"workspace_id": w.ID, "prompt": "Please be there."}).ID
		a.completed(id, 1)
		return w, id
	}
	_, first := launch()
	w, id := launch()
	for b.Loop() {
		var woken, byHands []time.Duration
		for i := range benchStarts {
			if err := errors.Join(s.down(), s.start()); err != nil {
				b.Fatal(err)
			}
			a.moved()
			rows, turn := a.rowsOf(id), i+2
			a.prompt(first, "Please be there.") // a server that has been up for a while
			a.completed(first, turn)
			time.Sleep(benchRest)
			began := time.Now()
			a.prompt(id, "Please be there.")
			rows.next(b, func(e Event) bool {
				return e.Type == "stage" && e.Body.Stage == "adapter" && e.Body.State == "done" && e.TurnNumber == turn
			})
			woken = append(woken, time.Since(began))
			a.completed(id, turn)
			hand := byHand(b, world, a.ModelKey, machine(*w.SandboxID))
			byHands = append(byHands, hand.booted)
			hand.stop()
		}
		b.ReportMetric(milliseconds(median(woken)), "ms-to-answer")
		b.ReportMetric(milliseconds(median(byHands)), "ms-by-hand")
		b.ReportMetric(float64(median(woken))/float64(median(byHands)), "x-by-hand")
	}
}

// BenchmarkServe is the time from the start of `managoat serve` on a data directory that was used, with a machine and its
// agent running on, to the first answer.
func BenchmarkServe(b *testing.B) {
	s, world := own(b)
	a := s.account(b)
	a.credential(world)
	world.Model.Script("be there", testworld.Reply{testworld.Say("I am.")})
	w := a.ready(a.workspace(a.environment(nil)).ID)
	a.completed(a.launch(a.claude(nil), body{"workspace_id": w.ID, "prompt": "Please be there."}).ID, 1)
	for b.Loop() {
		var took []time.Duration
		for range benchStarts {
			if err := s.stop(syscall.SIGTERM); err != nil {
				b.Fatal(err)
			}
			said := s.log.Len()
			began := time.Now()
			if err := s.start(); err != nil {
				b.Fatal(err)
			}
			resp, err := http.Get(s.url + "/health")
			if err != nil {
				b.Fatal(err)
			}
			resp.Body.Close()
			took = append(took, time.Since(began))
			if resp.StatusCode != http.StatusOK {
				b.Fatalf("/health: %s", resp.Status)
			}
			if took[len(took)-1] > benchStart {
				b.Logf("answered after %d ms:\n%s", took[len(took)-1].Milliseconds(), s.log.Since(said))
			}
		}
		b.ReportMetric(milliseconds(median(took)), "ms-to-answer")
		b.ReportMetric(milliseconds(slices.Max(took)), "ms-at-most")
	}
}
