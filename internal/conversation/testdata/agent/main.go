// Command agent is an agent for tests: it speaks the Agent Client Protocol on its standard streams and does what a prompt
// tells it, line by line. How it starts is told by its flags.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

var (
	crashOnce  = flag.String("crash-once", "", "exit with code 9 at the start, unless this file exists; then make it")
	crashStart = flag.Bool("crash-start", false, "print an error and exit with code 3 at the start")
	noResume   = flag.Bool("no-resume", false, "offer no way to take up a session")
	forgets    = flag.Bool("forgets", false, "know no session of before")
	mute       = flag.Bool("mute", false, "answer nothing")
)

type message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

var (
	out     sync.Mutex
	answers = make(chan message, 16)
	cancels = make(chan struct{}, 16)
	next    int
	deaf    bool            // to cancels
	servers json.RawMessage // MCP servers of the session's request
)

func main() {
	flag.Parse()
	if *crashStart {
		fmt.Fprintln(os.Stderr, "agent: cannot start: the license expired")
		os.Exit(3)
	}
	if *crashOnce != "" {
		if _, err := os.Stat(*crashOnce); err != nil {
			os.WriteFile(*crashOnce, nil, 0o644)
			fmt.Fprintln(os.Stderr, "agent: database is locked")
			os.Exit(9)
		}
	}
	fmt.Fprintln(os.Stderr, "agent: hello")
	prompts := make(chan message, 4)
	go func() {
		for m := range prompts {
			prompt(m)
		}
	}()
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line, &m) != nil || *mute {
			continue
		}
		if strings.HasPrefix(m.Method, "session/") && len(m.Params) > 0 {
			var p struct {
				Servers json.RawMessage `json:"mcpServers"`
			}
			if json.Unmarshal(m.Params, &p) == nil && p.Servers != nil {
				servers = p.Servers
			}
		}
		switch m.Method {
		case "initialize":
			caps := map[string]any{"loadSession": !*noResume, "promptCapabilities": map[string]any{"image": true}, "mcpCapabilities": map[string]any{"http": true}}
			if !*noResume {
				caps["sessionCapabilities"] = map[string]any{"resume": map[string]any{}}
			}
			reply(m.ID, map[string]any{"protocolVersion": 1, "agentCapabilities": caps})
		case "session/new":
			reply(m.ID, map[string]any{"sessionId": fmt.Sprintf("session-%d", os.Getpid())})
		case "session/resume", "session/load":
			if *forgets {
				write(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32602, "message": "no such session"}})
				continue
			}
			reply(m.ID, map[string]any{})
		case "session/prompt":
			prompts <- m
		case "session/cancel":
			if !deaf {
				cancels <- struct{}{}
			}
		case "":
			answers <- m
		default:
			write(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32601, "message": "unknown"}})
		}
	}
}

func write(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	raw(string(b) + "\n")
}

func raw(s string) {
	out.Lock()
	defer out.Unlock()
	os.Stdout.WriteString(s)
}

func reply(id json.RawMessage, result any) {
	write(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

var session string

func update(fields map[string]any) {
	write(map[string]any{"jsonrpc": "2.0", "method": "session/update", "params": map[string]any{"sessionId": session, "update": fields}})
}

func say(kind, id, text string) {
	update(map[string]any{"sessionUpdate": kind, "messageId": id, "content": map[string]any{"type": "text", "text": text}})
}

func ask(method string, params map[string]any) message {
	next++
	params["sessionId"] = session
	write(map[string]any{"jsonrpc": "2.0", "id": 1000 + next, "method": method, "params": params})
	return <-answers
}

// prompt does what a prompt says. Each line is a word and its argument.
func prompt(m message) {
	var p struct {
		SessionID string `json:"sessionId"`
		Prompt    []struct {
			Type, Text string
		} `json:"prompt"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		panic(err)
	}
	session = p.SessionID
	stop := "end_turn"
	message := fmt.Sprintf("m%d", time.Now().UnixNano())
	for line := range strings.SplitSeq(p.Prompt[0].Text, "\n") {
		word, arg, _ := strings.Cut(line, " ")
		n, _ := strconv.Atoi(arg)
		switch word {
		case "say":
			say("agent_message_chunk", message, arg)
		case "sayin": // pieces
			for piece := range strings.SplitSeq(arg, "|") {
				say("agent_message_chunk", message, piece)
			}
		case "message":
			message = arg
		case "think":
			say("agent_thought_chunk", message, arg)
		case "env":
			say("agent_message_chunk", message, arg+"="+os.Getenv(arg))
		case "cwd":
			dir, _ := os.Getwd()
			say("agent_message_chunk", message, dir)
		case "servers":
			say("agent_message_chunk", message, string(servers))
		case "images":
			say("agent_message_chunk", message, fmt.Sprint(len(p.Prompt)-1))
		case "title":
			update(map[string]any{"sessionUpdate": "session_info_update", "title": arg})
		case "plan":
			update(map[string]any{"sessionUpdate": "plan", "entries": []any{map[string]any{"content": arg, "status": "pending", "priority": "high"}}})
		case "tool": // starts and ends
			tool(arg, "pending", nil)
			update(map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": arg, "status": "completed", "rawOutput": map[string]any{"output": "out of " + arg, "exit_code": 3}})
		case "looks": // so many tools, one after the other, that run no command
			for i := range n {
				id := fmt.Sprint(message, "-", i)
				update(map[string]any{"sessionUpdate": "tool_call", "toolCallId": id, "title": "Look at " + id, "kind": "read", "status": "pending"})
				update(map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed", "rawOutput": "a line of what was seen there\n"})
			}
		case "forget": // starts and never ends
			tool(arg, "pending", nil)
		case "ask":
			tool(arg, "pending", nil)
			a := ask("session/request_permission", map[string]any{"options": []any{
				map[string]any{"optionId": "always", "name": "Always", "kind": "allow_always"},
				map[string]any{"optionId": "once", "name": "Once", "kind": "allow_once"},
				map[string]any{"optionId": "no", "name": "No", "kind": "reject_once"},
			}, "toolCall": map[string]any{"toolCallId": arg, "title": "Run " + arg, "kind": "execute", "rawInput": map[string]any{"command": arg}}})
			say("agent_message_chunk", message, string(a.Result))
		case "terminal":
			terminal(arg, func(string) {})
		case "late": // the same, named when the command has printed something
			terminal(arg, func(id string) {
				for strings.Contains(string(ask("terminal/output", map[string]any{"terminalId": id}).Result), `"output":""`) {
					time.Sleep(5 * time.Millisecond)
				}
			})
		case "hidden": // a command that no tool call shows
			a := ask("terminal/create", map[string]any{"command": "bash", "args": []string{"-c", arg}})
			id := idOf(a)
			ask("terminal/wait_for_exit", map[string]any{"terminalId": id})
			ask("terminal/release", map[string]any{"terminalId": id})
		case "shell": // in the shell that the machine offers, with a tool call that shows it
			tool(arg, "in_progress", nil)
			cmd := exec.Command(os.Getenv("SHELL"), "-c", arg)
			output, err := cmd.CombinedOutput()
			status := "completed"
			if err != nil {
				status = "failed"
			}
			update(map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": arg, "status": status, "rawOutput": "the agent's words for " + string(output)})
		case "quietly": // the same, with none
			exec.Command(os.Getenv("SHELL"), "-c", arg).Output()
		case "read":
			say("agent_message_chunk", message, string(ask("fs/read_text_file", map[string]any{"path": arg}).Result))
		case "writefile":
			path, content, _ := strings.Cut(arg, " ")
			ask("fs/write_text_file", map[string]any{"path": path, "content": content})
		case "raw":
			raw(strings.NewReplacer(`\0`, "\x00", `\x`, "\xff", `\e`, "\x1b").Replace(arg) + "\n")
		case "nul":
			raw(fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%q,"update":{"sessionUpdate":"agent_message_chunk","messageId":"n","content":{"type":"text","text":"a\u0000b\ud800c\ud83d\ude00d"}}}}`+"\n", session))
		case "split": // a character whose bytes come apart in time
			line := fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%q,"update":{"sessionUpdate":"agent_message_chunk","messageId":"s","content":{"type":"text","text":"one — dash"}}}}`+"\n", session)
			at := strings.Index(line, "—") + 1
			raw(line[:at])
			time.Sleep(60 * time.Millisecond)
			raw(line[at:])
		case "huge": // one line of so many bytes
			say("agent_message_chunk", message, strings.Repeat("x", n))
		case "lots": // so many chunks
			for i := range n {
				say("agent_message_chunk", message, fmt.Sprintf("%d,", i))
			}
		case "toolout": // so many bytes as a tool's output
			tool("big", "in_progress", nil)
			update(map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": "big", "status": "completed", "rawOutput": strings.Repeat("0123456789abcdef", n/16) + "END"})
		case "wait": // until the file exists
			for {
				if _, err := os.Stat(arg); err == nil {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
		case "touch":
			os.WriteFile(arg, nil, 0o644)
		case "sleep":
			select {
			case <-time.After(time.Duration(n) * time.Millisecond):
			case <-cancels:
				stop = "cancelled"
			}
		case "child": // a process that outlives us
			exec.Command("sleep", "7777").Start()
		case "deaf":
			deaf = true
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		case "stop":
			stop = arg
		case "fail":
			write(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32603, "message": arg, "data": map[string]any{"errorKind": "overloaded"}}})
			return
		case "exit":
			fmt.Fprintln(os.Stderr, "agent: giving up")
			os.Exit(n)
		case "eat": // memory until somebody stops it
			var hog [][]byte
			for {
				b := make([]byte, 16<<20)
				for i := range b {
					b[i] = byte(i)
				}
				hog = append(hog, b)
			}
		case "kill":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		if stop == "cancelled" {
			break
		}
	}
	result := map[string]any{"usage": map[string]any{"inputTokens": 10, "outputTokens": 0, "totalTokens": 10}}
	if stop != "none" {
		result["stopReason"] = stop
	}
	reply(m.ID, result)
}

func tool(id, status string, content []any) {
	update(map[string]any{"sessionUpdate": "tool_call", "toolCallId": id, "title": "Run " + id, "kind": "execute", "status": status,
		"rawInput": map[string]any{"command": id}, "content": content})
}

func idOf(m message) string {
	var r struct {
		ID string `json:"terminalId"`
	}
	json.Unmarshal(m.Result, &r)
	return r.ID
}

// terminal runs a command through the client and shows it in a tool call, once before returns.
func terminal(command string, before func(id string)) {
	id := idOf(ask("terminal/create", map[string]any{"command": "bash", "args": []string{"-c", command}, "outputByteLimit": 1000}))
	before(id)
	tool("t-"+id, "in_progress", []any{map[string]any{"type": "terminal", "terminalId": id}})
	exit := ask("terminal/wait_for_exit", map[string]any{"terminalId": id})
	output := ask("terminal/output", map[string]any{"terminalId": id})
	status := "completed"
	if !strings.Contains(string(exit.Result), `"exitCode":0`) {
		status = "failed"
	}
	update(map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": "t-" + id, "status": status})
	ask("terminal/release", map[string]any{"terminalId": id})
	say("agent_message_chunk", "after", string(output.Result))
}
